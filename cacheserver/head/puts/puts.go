// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package puts answers the calls by which clients put datasets: the actions that begin, publish and drop them, and a plain DoPut. Which
// datasets there are is decided by a put.Catalog, and rows go to the data nodes.
package puts

import (
	"log/slog"
	"sync"

	"github.com/kubeflow/datacache/cacheserver/access"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/put"
	"github.com/kubeflow/datacache/cacheserver/put/commit"
	"github.com/kubeflow/datacache/cacheserver/transport"
)

// Service answers the calls. All exported fields but Keep are required.
type Service struct {
	Enabled bool   // otherwise all calls are refused
	Keep    string // how rows are kept, unless the client says it
	Cluster Cluster
	Signer  protocol.Signer // of tickets and receipts
	Access  *access.Guard
	Memory  offheap.Clients // for answers
	TLS     transport.TLS   // to data nodes
	Log     *slog.Logger
	Tables  commit.Tables // to which datasets are committed

	commits commit.Jobs
	parsing sync.Mutex // held while a schema is parsed: one at a time bounds the memory
}

// Cluster is what the head knows of puts and of its data nodes.
type Cluster interface {
	// Ready returns why clients can't put datasets at the moment, if they can't.
	Ready() error
	// Nodes are the data nodes by index.
	Nodes() []Node
	// Change calls a function that changes the catalog, and sends what it orders to the data nodes.
	Change(change func(*put.Catalog) error) error
	// Look calls a function that reads the catalog. The channel is closed when the catalog may have changed after that.
	Look(at func(*put.Catalog)) (changed <-chan struct{})
}

// Node is a data node as it said last.
type Node struct {
	Address string
	Disk    bool // it has a folder for parts
	Memory  protocol.MemoryStatus
	Puts    protocol.MemoryStatus // the part of it for puts
	Writer  int64                 // the limit of one writer within it; 0: no limit
}
