// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"errors"
	"net"
	"os"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// Eventually calls check every 20 ms until it returns nil; at the time limit it fails the test with the last error, so it must be
// called from the test's own goroutine. It calls check at least once, and never concurrently.
func Eventually(t testing.TB, within time.Duration, check func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s still: %v", within, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Ports allocates the ports from First to before End; the zero value has none. Packages whose tests run concurrently must use
// disjoint ranges, below the kernel's range for outgoing connections and listeners on port 0 (net.ipv4.ip_local_port_range), so that
// an address stays free while its process is down. It is safe for concurrent use and must not be copied.
type Ports struct {
	First, End int

	next atomic.Int64
}

// Free returns a loopback address, as host:port, where nothing listens and that none of the previous End-First calls returned. It
// starts at a random position in the range, so that concurrent runs rarely collide. If no port is free the test fails.
func (p *Ports) Free(t testing.TB) string {
	t.Helper()
	size := p.End - p.First
	for range size {
		port := p.First + (os.Getpid()*37+int(p.next.Add(1)))%size
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		_ = listener.Close() // it accepted no connection
		return address
	}
	t.Fatalf("no free port on loopback from %d to %d", p.First, p.End-1)
	return ""
}
