// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package ops

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	// maxJobNames is how many jobs have counters of their own; the jobs after them share one, since clients choose the names.
	maxJobNames = 64
	otherJobs   = "other"
)

// JobCounter is a counter by job. It is safe for concurrent use.
type JobCounter struct {
	counters *prometheus.CounterVec
	names    *jobNames
}

// Of returns the counter of a job: its own for the first 64 jobs of the process, that of "other" for the rest.
func (c *JobCounter) Of(job string) prometheus.Counter {
	return c.counters.WithLabelValues(c.names.label(job))
}

// jobNames are the jobs with counters of their own. The zero value is ready to use.
type jobNames struct {
	mu    sync.Mutex
	known map[string]struct{}
}

func (n *jobNames) label(job string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.known[job]; ok {
		return job
	}
	if len(n.known) >= maxJobNames {
		return otherJobs
	}
	if n.known == nil {
		n.known = map[string]struct{}{}
	}
	n.known[job] = struct{}{}
	return job
}
