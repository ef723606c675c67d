// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/transport"
)

// calls tracks the calls that use an assignment's rows, and can end them to free its memory. Make it with newCalls.
type calls struct {
	ended context.Context // canceled when the calls must end
	end   context.CancelFunc

	mu   sync.Mutex
	open int
	idle chan struct{} // closed when ended is canceled and open is 0
}

func newCalls(ctx context.Context) *calls {
	c := &calls{idle: make(chan struct{})}
	c.ended, c.end = context.WithCancel(context.WithoutCancel(ctx)) // not canceled with ctx: a node that shuts down lets its calls finish
	return c
}

// errReplaced ends the calls of an assignment that another one replaces.
var errReplaced = status.Error(codes.Unavailable, "the data node loads another plan: ask the head again")

// add registers a call; it returns an error if calls are being ended.
func (c *calls) add() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended.Err() != nil {
		return errReplaced
	}
	c.open++
	return nil
}

// done unregisters a call.
func (c *calls) done() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
	c.noteLocked()
}

func (c *calls) noteLocked() {
	if c.ended.Err() != nil && c.open == 0 {
		close(c.idle)
	}
}

// during runs a call's handler. When calls must end, the handler's sends and receives fail.
func (c *calls) during(ctx context.Context, handler func() error) error {
	stop := context.AfterFunc(c.ended, func() { transport.Cancel(ctx) })
	defer stop()
	err := handler()
	if err != nil && c.ended.Err() != nil {
		return errReplaced
	}
	return err
}

// endAll ends all calls and returns a channel that is closed when they have ended. It must be called only once.
func (c *calls) endAll() (idle <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end()
	c.noteLocked()
	return c.idle
}

// number is the number of open calls.
func (c *calls) number() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open
}
