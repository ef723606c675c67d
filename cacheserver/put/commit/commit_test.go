// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package commit

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/kubeflow/datacache/cacheserver/protocol"
)

// TestJobs checks that a commit goes on when who began it has gone, that others join it, and that its end makes way for another one.
func TestJobs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var jobs Jobs
		r := Request{Table: "db.t", Mode: protocol.CommitAppend, Put: "put-1", Dataset: "a@f"}
		gone, forever, end := make(chan struct{}), make(chan struct{}), make(chan struct{})
		close(gone)
		run := func(context.Context) (Result, error) {
			<-end
			return Result{Snapshot: 7}, nil
		}
		another := func(context.Context) (Result, error) { return Result{}, errors.New("another one") }
		if c, err := jobs.Do(r, gone, run); err != nil || c.State != protocol.Committing {
			t.Errorf("who does not wait: %+v, %v", c, err)
		}
		joined := make(chan protocol.Committed, 1)
		go func() {
			c, err := jobs.Do(r, forever, another)
			if err != nil {
				t.Errorf("who joins: %v", err)
			}
			joined <- c
		}()
		synctest.Wait()
		other := r
		other.Table = "db.other"
		if _, err := jobs.Do(other, forever, another); err == nil {
			t.Error("another table: it joined")
		}
		close(end)
		if c := <-joined; c.State != protocol.CommitDone || c.Snapshot != 7 || c.Dataset != "a@f" || c.Table != "db.t" {
			t.Errorf("who joins: %+v", c)
		}
		if _, err := jobs.Do(r, forever, another); err == nil {
			t.Error("after the end: it joined")
		}
	})
}
