// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"testing"
)

// Ports for servers are below those that Linux uses for outgoing connections and for listeners on port 0 (net.ipv4.ip_local_port_range), so that
// an address stays free while its server is down.
const firstPort, endPort = 4096, 32768

// claims is a file of this machine's user. A process that has port N has a lock on its byte N, for as long as it lives. Python's tests use the
// same file (hack/kit/ports.py).
var claims = sync.OnceValues(func() (*os.File, error) {
	path := filepath.Join(os.TempDir(), "datacache-ports-"+strconv.Itoa(os.Getuid()))
	return os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
})

var ports = struct {
	sync.Mutex
	next int
}{next: os.Getpid() * 37}

// FreeAddress returns a loopback address, as host:port, where nothing listens, and that neither another process nor, before all others were used,
// this one gets. If there is none, the test fails.
func FreeAddress(t testing.TB) string {
	t.Helper()
	address, err := freeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

func freeAddress() (string, error) {
	file, err := claims()
	if err != nil {
		return "", err
	}
	ports.Lock()
	defer ports.Unlock()
	for range endPort - firstPort {
		port := firstPort + ports.next%(endPort-firstPort)
		ports.next++
		claim := syscall.Flock_t{Type: syscall.F_WRLCK, Start: int64(port), Len: 1}
		if err := syscall.FcntlFlock(file.Fd(), syscall.F_SETLK, &claim); errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EACCES) {
			continue // another process has it
		} else if err != nil {
			return "", fmt.Errorf("claim port %d: %w", port, err)
		}
		address := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
		listener, err := net.Listen("tcp", address) //nolint:noctx // it returns at once
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return "", err
		}
		_ = listener.Close() // it accepted no connection
		return address, nil
	}
	return "", fmt.Errorf("no free port on loopback from %d to %d", firstPort, endPort-1)
}
