// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

// linesSeen calls a function with the number and the text of each line that is written.
type linesSeen struct {
	lines []string
	seen  func(number int)
}

func (l *linesSeen) Write(line []byte) (int, error) {
	l.lines = append(l.lines, strings.TrimSuffix(string(line), "\n"))
	l.seen(len(l.lines))
	return len(line), nil
}

// TestReach connects to a listener until that is closed, and to a name that does not exist.
func TestReach(t *testing.T) {
	t.Parallel()
	address := proctest.FreeAddress(t)
	admitting, stop := context.WithCancel(t.Context())
	defer stop()
	ended := make(chan error, 1)
	go func() { ended <- admit(admitting, address) }()
	deadline.Eventually(t, func() error {
		c, err := net.Dial("tcp", address)
		if err == nil {
			_ = c.Close()
		}
		return err
	})
	reaching, enough := context.WithCancel(deadline.Context(t))
	out := &linesSeen{seen: func(number int) {
		switch number {
		case 1: // it was connected
			stop()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		case 3:
			enough()
		}
	}}
	if err := reach(reaching, out, []string{address, "no-such-host.invalid:80"}); err != nil {
		t.Fatal(err)
	}
	if l := out.lines; len(l) != 3 || l[0] != address+" ok" || !strings.HasPrefix(l[1], "no-such-host.invalid:80 dial tcp: lookup ") || !strings.HasPrefix(l[2], address+" dial tcp ") {
		t.Errorf("it prints %q", l)
	}
}
