// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package commit has what head, data nodes and tables say to each other about committing a dataset to a table, and the commits that go on. It knows no
// table format.
package commit

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/protocol"
)

// Request is what to commit.
type Request struct {
	Table       string // NAMESPACE.TABLE
	Mode        string // protocol.CommitAppend or protocol.CommitReplace
	Put         string // id of the put that made the dataset
	Dataset     string // NAME@FINGERPRINT
	Fingerprint string
	Schema      *arrow.Schema
}

// Write sends an order to all data nodes and returns their descriptions of the files that they wrote, in the order of the rows. Only the Tables that
// made the order knows the encoding of both.
type Write func(ctx context.Context, order []byte) (files [][]byte, err error)

// Result is what a commit has made.
type Result struct {
	Snapshot int64
	Existed  bool // an earlier commit of the same rows had made it
}

// Tables commits datasets to the tables of a catalog. It is safe for concurrent use.
type Tables interface {
	// Commit makes one snapshot of a dataset, or finds the one that was made of it. Its errors are a Refusal, if trying again is of no use.
	Commit(ctx context.Context, r Request, write Write) (Result, error)
	// Write writes the parts of a data node to files, as an order says, and calls each with the description of each file, for the head.
	Write(ctx context.Context, order []byte, schema *arrow.Schema, parts iter.Seq[Part], each func(file []byte) error) error
}

// Part is the rows of a part of a dataset. A batch is valid until the next one.
type Part struct {
	Number  int
	Batches iter.Seq2[arrow.RecordBatch, error]
}

// Refusal is a permanent error: trying the same again fails again.
type Refusal struct{ Reason error }

func (r *Refusal) Error() string { return r.Reason.Error() }
func (r *Refusal) Unwrap() error { return r.Reason }

// Refused returns a Refusal.
func Refused(format string, args ...any) error { return &Refusal{fmt.Errorf(format, args...)} }

// Jobs are the commits that go on. The zero value has none; it is safe for concurrent use.
type Jobs struct {
	mu      sync.Mutex
	running map[string]*job
}

// job is a commit. Its fields after done are set when that is closed.
type job struct {
	done   chan struct{}
	result Result
	err    error
}

// mostTime is how long a commit may take.
const mostTime = 2 * time.Hour

// Do runs a commit, or joins the one of the same dataset to the same table that goes on, and waits for it so long. Without a result in that time, the
// commit goes on.
func (j *Jobs) Do(r Request, wait <-chan struct{}, run func(context.Context) (Result, error)) (c protocol.Committed, err error) {
	key := fmt.Sprintf("%s %s %s", r.Put, r.Mode, r.Table)
	j.mu.Lock()
	at := j.running[key]
	if at == nil {
		if j.running == nil {
			j.running = map[string]*job{}
		}
		at = &job{done: make(chan struct{})}
		j.running[key] = at
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), mostTime) //nolint:forbidigo // it outlives the call that began it
			defer cancel()
			at.result, at.err = run(ctx)
			j.mu.Lock()
			delete(j.running, key)
			j.mu.Unlock()
			close(at.done)
		}()
	}
	j.mu.Unlock()
	c = protocol.Committed{Dataset: r.Dataset, Table: r.Table, State: protocol.Committing}
	select {
	case <-at.done:
		c.State, c.Snapshot, c.Existed = protocol.CommitDone, at.result.Snapshot, at.result.Existed
		return c, at.err
	case <-wait:
		return c, nil
	}
}
