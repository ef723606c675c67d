// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

// engine keeps the data of the DataCaches whose spec names it. Users, lifetime, status and events are the same for every engine and are not
// its business. An engine is safe for concurrent use.
type engine interface {
	// provision creates the cache's objects or brings them up to date. An error for which obstacleOf gives an obstacle needs people; any
	// other is tried again.
	provision(ctx context.Context, dc *v1alpha1.DataCache) error
	// observe reads how the cache's objects are doing. It changes nothing.
	observe(ctx context.Context, dc *v1alpha1.DataCache) (observation, error)
	// release deletes what holds memory, and keeps what costs nothing. It returns before all of that is gone.
	release(ctx context.Context, dc *v1alpha1.DataCache) error
	// describe names for events what starts and what is loaded, such as "a head and 2 data nodes" and "table demo.reviews".
	describe(dc *v1alpha1.DataCache) (parts, data string)
}

// observation is what an engine found out about a cache.
type observation struct {
	// exists: there is something that holds memory; leaving: it is being deleted; created: when it was asked for.
	exists, leaving bool
	created         metav1.Time
	// condition is how it is doing, whether or not anybody wants it. Not set where nothing exists.
	condition condition
	// answers: the condition is the cache's own word, not guessed from pods. silent: something runs that should answer and does not.
	answers, silent bool
	// progress is nil where it is not known.
	progress *progress

	replicas, readyReplicas int32
	selector                string // of the pods that replicas count
	endpoint, claimName     string // how clients reach it, whether it exists or not
}

// condition is a state with a reason and words for people.
type condition struct {
	state           v1alpha1.State
	reason, message string
}

// progress is how much of a cache is in memory.
type progress struct {
	snapshot string // "" while it is not chosen
	rows     int64
	bytes    int64
	percent  int32
}
