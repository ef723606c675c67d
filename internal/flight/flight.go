// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package flight shares one call among all who want its result at the same time.
package flight

import (
	"context"
	"time"

	"golang.org/x/sync/singleflight"
)

// Group is a set of calls by key. The zero value is empty; it may be shared. All calls of a Group have results of type T.
type Group[T any] struct{ flights singleflight.Group }

// Do calls load, unless a concurrent call with the same key is running, whose result it returns then. load's context does not end with
// ctx, since others may be waiting for it, but after a time.
func (g *Group[T]) Do(ctx context.Context, key string, limit time.Duration, load func(ctx context.Context) (T, error)) (T, error) {
	shared := context.WithoutCancel(ctx)
	result := g.flights.DoChan(key, func() (any, error) {
		ctx, cancel := context.WithTimeout(shared, limit)
		defer cancel()
		return load(ctx)
	})
	select {
	case r := <-result:
		value, _ := r.Val.(T) // load returns no other type
		return value, r.Err
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}
