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

// Eventually calls check each 20 ms until it has no objection, or ends the test with the last one, so it is for the
// test's own goroutine. It calls check once at least, and never during another call.
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

// Ports is the ports from First to before End, and which of them were given away; the zero value has none. Packages whose
// tests run at the same time take ranges apart, below the one that the kernel gives to outgoing connections and to listeners
// on port 0 (net.ipv4.ip_local_port_range), so that an address stays free while its process is down. Any number of
// goroutines may use one; it must not be copied.
type Ports struct {
	First, End int

	next atomic.Int64
}

// Free returns a loopback address, as host:port, that nobody listens on and that no earlier of End-First calls was given. It
// starts anywhere in the range, so that two runs at a time seldom meet. With no free port the test ends.
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
		_ = listener.Close() // it took no connection
		return address
	}
	t.Fatalf("no free port on loopback from %d to %d", p.First, p.End-1)
	return ""
}
