// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"time"

	"github.com/kubeflow/datacache/cacheserver/role"
)

// Config configures a head. Fields without a comment are required.
type Config struct {
	role.Config
	Nodes int // number of data nodes, at least 1
	// OneProcess says that head and data nodes are one process and share Budget, so that the page shows it once.
	OneProcess bool
	// FilterComparisons is how many comparisons evaluating a filter may take on a data node: its terms times the node's rows. 0: 10^11.
	FilterComparisons int64

	TicketTTL   time.Duration // how long a ticket may be used to start a stream; 0: one hour
	NodeTimeout time.Duration // time without a message after which a node counts as lost; 0: ten seconds
	JoinTimeout time.Duration // time limit for every node to join once; 0: ten minutes
	LoadTimeout time.Duration // time that a first load may make no progress; 0: 15 minutes
}

// FilterComparisons is the default of Config.FilterComparisons: one to two minutes of a core.
const FilterComparisons = 100_000_000_000

// Limits of a cache.
const (
	MostNodes  = 1000
	MostSplits = 2_000_000
)
