// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"context"
	"testing"
)

// Server serves until ctx ends, such as a head of a cache or a manager.
type Server interface {
	Start(ctx context.Context) error
}

// RunServer runs the server that open makes in this process until the test ends. It fails the test if the server can't be made or ends with an
// error. The server's context lasts until the test's cleanup.
func RunServer[S Server](t testing.TB, open func(ctx context.Context) (S, error)) S {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	server, err := open(ctx)
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("%T: %v", server, err)
		}
	})
	return server
}
