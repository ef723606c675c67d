// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"net"
	"strings"
	"testing"
	"time"
)

// TestReach connects to a listener until that is closed, and to a name that does not exist.
func TestReach(t *testing.T) {
	t.Parallel()
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	_ = free.Close() // admit listens there
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- admit(ctx, address) }()
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if c, err := net.Dial("tcp", address); err == nil {
			_ = c.Close()
			break
		}
	}
	closing := time.AfterFunc(reachPause/2, stop)
	defer closing.Stop()
	within, cancel := context.WithTimeout(t.Context(), 2*reachPause)
	defer cancel()
	var out bytes.Buffer
	if err := reach(within, &out, []string{address, "no-such-host.invalid:80"}); err != nil {
		t.Fatal(err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || lines[0] != address+" ok" || !strings.HasPrefix(lines[1], "no-such-host.invalid:80 dial tcp: lookup ") || !strings.HasPrefix(lines[2], address+" dial tcp ") {
		t.Errorf("it prints\n%s", out.String())
	}
}
