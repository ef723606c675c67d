// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"sync"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/transport"
)

// Calls tracks the calls that use some rows, and can end them to free the rows' memory. Make it with NewCalls.
type Calls struct {
	ended context.Context // canceled when the calls must end
	end   context.CancelFunc

	mu   sync.Mutex
	open int
	idle chan struct{} // closed when ended is canceled and open is 0
}

// NewCalls returns calls that may go on when ctx has ended: a node that shuts down lets them finish.
func NewCalls(ctx context.Context) *Calls {
	c := &Calls{idle: make(chan struct{})}
	c.ended, c.end = context.WithCancel(context.WithoutCancel(ctx))
	return c
}

// errReplaced ends the calls of an assignment that another one replaces.
var errReplaced = status.Error(codes.Unavailable, "the data node loads another plan: ask the head again")

// Add registers a call; it returns an error if calls are being ended.
func (c *Calls) Add() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended.Err() != nil {
		return errReplaced
	}
	c.open++
	return nil
}

// Done unregisters a call.
func (c *Calls) Done() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
	c.noteLocked()
}

func (c *Calls) noteLocked() {
	if c.ended.Err() != nil && c.open == 0 {
		close(c.idle)
	}
}

// during runs a call's handler. When calls must end, the handler's sends and receives fail.
func (c *Calls) during(ctx context.Context, handler func() error) error {
	stop := context.AfterFunc(c.ended, func() { transport.Cancel(ctx) })
	defer stop()
	err := handler()
	if err != nil && c.ended.Err() != nil {
		return errReplaced
	}
	return err
}

// End ends all calls and returns a channel that is closed when they have ended. It must be called only once.
func (c *Calls) End() (idle <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.end()
	c.noteLocked()
	return c.idle
}

// Number is the number of open calls.
func (c *Calls) Number() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.open
}
