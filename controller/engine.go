// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/view"
)

// engine runs the caches of one kind of spec. Users, lifetime, status and events are common to all engines and handled elsewhere. An
// engine must be safe for concurrent use.
type engine interface {
	// provision creates or updates the cache's objects. An error for which obstacleOf returns an obstacle needs intervention by
	// people; other errors are retried.
	provision(ctx context.Context, dc *v1alpha1.DataCache) error
	// observe reads the state of the cache's objects. It changes nothing.
	observe(ctx context.Context, dc *v1alpha1.DataCache) (observation, error)
	// release deletes what uses memory and keeps what costs nothing. It does not wait for the deletion to complete.
	release(ctx context.Context, dc *v1alpha1.DataCache) error
	// describe returns descriptions for events of what starts and what is loaded, such as "a head and 2 data nodes" and "table
	// demo.reviews".
	describe(dc *v1alpha1.DataCache) (parts, data string)
}

// observation is the state of a cache that an engine observed.
type observation struct {
	// exists: something that uses memory exists; leaving: it is being deleted; created: when it was created.
	exists, leaving bool
	created         metav1.Time
	// condition is the cache's condition, regardless of whether the cache is wanted. Not set if nothing exists.
	condition condition
	// answers: the condition was reported by the cache itself and not derived from pods. silent: something is running that should
	// answer and does not.
	answers, silent bool
	// awaitsEvent: the next change of the cache's objects causes an event, so they are looked at seldom until then.
	awaitsEvent bool
	// progress is nil if it is unknown. An engine that knows only a percentage sets percent instead.
	progress *progress
	percent  *int32
	// readers are those that heads list.
	readers []view.Reader

	replicas, readyReplicas int32
	selector                string // matches the pods that replicas counts
	endpoint, claimName     string // how clients access the cache, whether it exists or not
}

// condition is a state with a reason and a message.
type condition struct {
	state           v1alpha1.State
	reason, message string
}

// progress is how much of a cache is in memory.
type progress struct {
	snapshot string // "" until it is selected
	rows     int64
	bytes    int64
	percent  int32
}
