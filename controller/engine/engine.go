// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package engine has what the controller asks of a kind of cache, and what it learns of one.
package engine

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/view"
)

// Engine runs the caches of one kind of spec. Users, lifetime, status and events are common to all engines and handled elsewhere. An
// Engine must be safe for concurrent use.
type Engine interface {
	// Provision creates or updates the cache's objects. An error that the controller calls an obstacle needs intervention by
	// people; other errors are retried.
	Provision(ctx context.Context, dc *v1alpha1.DataCache) error
	// Observe reads the state of the cache's objects. It changes nothing.
	Observe(ctx context.Context, dc *v1alpha1.DataCache) (Observation, error)
	// Release deletes what uses memory and keeps what costs nothing. It does not wait for the deletion to complete.
	Release(ctx context.Context, dc *v1alpha1.DataCache) error
	// Describe returns descriptions for events of what starts and what is loaded, such as "a head and 2 data nodes" and "table
	// demo.reviews".
	Describe(dc *v1alpha1.DataCache) (parts, data string)
}

// Observation is the state of a cache that an engine observed.
type Observation struct {
	// Exists: something that uses memory exists; leaving: it is being deleted; created: when it was created.
	Exists, Leaving bool
	Created         metav1.Time
	// Condition is the cache's condition, regardless of whether the cache is wanted. Not set if nothing exists.
	Condition Condition
	// Answers: the condition was reported by the cache itself and not derived from pods. silent: something is running that should
	// answer and does not.
	Answers, Silent bool
	// AwaitsEvent: the next change of the cache's objects causes an event, so they are looked at seldom until then.
	AwaitsEvent bool
	// Again: the cache's objects must be applied again at once.
	Again bool
	// Access are the conditions of who may read the cache; nil: as before.
	Access []metav1.Condition
	// Progress is nil if it is unknown. An engine that knows only a percentage sets percent instead.
	Progress *Progress
	Percent  *int32
	// Readers are those that heads list.
	Readers []view.Reader

	Replicas, ReadyReplicas int32
	Selector                string // matches the pods that replicas counts
	Endpoint, ClaimName     string // how clients access the cache, whether it exists or not
}

// Condition is a state with a reason and a message.
type Condition struct {
	State           v1alpha1.State
	Reason, Message string
}

// Progress is how much of a cache is in memory.
type Progress struct {
	Snapshot string // "" until it is selected
	Rows     int64
	Bytes    int64
	Percent  int32
	Datasets []v1alpha1.Dataset // that clients have put
}
