// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"fmt"
	"time"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/internal/words"
)

// Config configures a head. Fields without a comment are required.
type Config struct {
	role.Config
	Nodes int // number of data nodes, at least 1
	// Memory is how much memory the process may use: a table whose plan takes more is rejected. 0: that is not known.
	Memory int64
	// OneProcess says that head and data nodes are one process and share Budget, so that the page shows it once.
	OneProcess bool
	// FilterComparisons is how many comparisons evaluating a filter may take on a data node: its terms times the node's rows. 0: 10^11.
	FilterComparisons int64

	// FirstEpoch is the epoch whose rows are loaded first, if planning can count rows; nil: they are loaded as clients need them, or in file order.
	FirstEpoch *protocol.First

	// Puts lets clients put datasets.
	Puts bool
	// PutKeep is how they are kept, unless the client says it: one of protocol.Keeps; "": on disk where data nodes have one.
	PutKeep string

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

// checkPlan rejects a plan that is too large for the head.
func (c *Config) checkPlan(nodes, splits int) error {
	if splits > MostSplits {
		return fmt.Errorf("splits: %d, at most %d can be cached: rewrite the table with longer row groups, or cache fewer files", splits, MostSplits)
	}
	takes := assign.PlanMemory(nodes, splits)
	if c.Memory > 0 && takes > c.Memory {
		return fmt.Errorf("head memory: %s, and the plan of %d splits for %d data nodes takes %s when a head restarts: give the head at least %s (HEAD_MEM, the DataCache's head.resources.limits.memory), rewrite the table with longer row groups, or take fewer data nodes",
			words.ExactBytes(c.Memory), splits, nodes, words.ExactBytes(takes), words.ExactBytes(takes+takes/8))
	}
	return nil
}
