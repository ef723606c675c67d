// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package sink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	ice "github.com/apache/iceberg-go"
	"github.com/apache/iceberg-go/codec"
	"github.com/apache/iceberg-go/table"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/put/commit"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
)

// Properties of the snapshots that are made, by which a commit whose answer was lost is found.
const (
	propertyPut         = "datacache.put"
	propertyFingerprint = "datacache.fingerprint"
	propertyMode        = "datacache.mode"
)

const (
	// patience is how long a commit is tried while the catalog fails or others commit to the table all the time.
	patience = 5 * time.Minute
	// attemptTime is how long the requests of one attempt may take.
	attemptTime = 3 * time.Minute
	firstPause  = 100 * time.Millisecond
	mostPause   = 5 * time.Second
)

// work is one commit.
type work struct {
	commit.Request
	tables *Tables
	write  commit.Write
	id     table.Identifier

	order []byte   // that was carried out
	files [][]byte // by it
	sent  bool     // a commit was sent to the catalog
}

// errAgain makes an attempt begin anew, as something was done that took long.
var errAgain = errors.New("the table may have changed")

// Commit implements commit.Tables. The snapshot is made by a request that fails if the table has another current snapshot than the one that was
// searched for an earlier commit of the same rows. So however many requests reach the catalog, late or twice, it accepts one.
func (s *Tables) Commit(ctx context.Context, r commit.Request, write commit.Write) (commit.Result, error) {
	if s.Location.CatalogURI == "" {
		return commit.Result{}, commit.Refused("this cache knows no Iceberg catalog: start its head and data nodes with --catalog-uri (env CATALOG_URI)")
	}
	id, err := identifier(r.Table)
	if err != nil {
		return commit.Result{}, err
	}
	w := &work{Request: r, tables: s, write: write, id: id}
	begun, pause := time.Now(), firstPause
	for {
		result, err := w.try(ctx)
		switch {
		case err == nil:
			return result, nil
		case errors.Is(err, errAgain):
			begun = time.Now()
			continue
		case permanent(err):
			return commit.Result{}, w.failed(commit.Refused("%w", err))
		case ctx.Err() != nil || time.Since(begun) > patience:
			return commit.Result{}, w.failed(err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause)):
		}
		pause = min(2*pause, mostPause)
	}
}

// failed adds to an error what is left of the commit.
func (w *work) failed(err error) error {
	var o order
	if w.files == nil || json.Unmarshal(w.order, &o) != nil {
		return err
	}
	left := fmt.Errorf("%w; %d files %s* are in the store: commit again to use them", err, len(w.files), o.Prefix)
	if w.sent {
		left = fmt.Errorf("%w, and delete them only if no snapshot of %s has the property %s=%s", left, w.Table, propertyFingerprint, w.Fingerprint)
	}
	if permanent(err) {
		return &commit.Refusal{Reason: left}
	}
	return left
}

// try makes one attempt.
func (w *work) try(ctx context.Context) (_ commit.Result, err error) {
	defer parquet.RecoverError(&err) // iceberg-go panics over some damaged manifests
	attempt, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	t, err := w.tables.open(attempt, w.id, w.Request)
	if err != nil {
		return commit.Result{}, err
	}
	defer t.close()
	if snapshot := w.made(t.Metadata()); snapshot != 0 {
		return commit.Result{Snapshot: snapshot, Existed: !w.sent}, nil
	}
	text, err := w.orderFor(t)
	if err != nil {
		return commit.Result{}, err
	}
	if w.files == nil || !bytes.Equal(text, w.order) {
		if w.files, err = w.write(ctx, text); err != nil {
			w.files = nil
			return commit.Result{}, err
		}
		w.order = text
		return commit.Result{}, errAgain
	}
	change, err := w.change(attempt, t)
	if err != nil {
		return commit.Result{}, err
	}
	w.sent = true
	meta, _, err := t.catalog.CommitTable(attempt, w.id, change.Requirements, change.Updates)
	if err != nil {
		return commit.Result{}, fmt.Errorf("commit to %s: %w", w.Table, err)
	}
	snapshot := w.made(meta)
	if snapshot == 0 {
		return commit.Result{}, fmt.Errorf("commit to %s: the catalog says that it is done, and the table has no snapshot of it", w.Table)
	}
	return commit.Result{Snapshot: snapshot}, nil
}

// made returns the snapshot that was made of the rows, 0 if there is none. Rows are appended to a table once, whichever put has them; one put replaces
// a table once.
func (w *work) made(meta table.Metadata) int64 {
	for s := meta.CurrentSnapshot(); s != nil; {
		if s.Summary != nil {
			p := s.Summary.Properties
			appended := w.Mode == protocol.CommitAppend && p[propertyFingerprint] == w.Fingerprint
			replaced := w.Mode == protocol.CommitReplace && p[propertyMode] == w.Mode && p[propertyPut] == w.Put
			if appended || replaced {
				return s.SnapshotID
			}
		}
		if s.ParentSnapshotID == nil {
			return 0
		}
		s = meta.SnapshotByID(*s.ParentSnapshotID)
	}
	return 0
}

// orderFor returns the order for the files, if the table can have them.
func (w *work) orderFor(t *opened) ([]byte, error) {
	spec := t.Spec()
	if !spec.IsUnpartitioned() {
		return nil, commit.Refused("table %s is partitioned: commit to a table without partitions", w.Table)
	}
	schema, err := matched(t.Schema(), w.Schema)
	if err != nil {
		return nil, fmt.Errorf("table %s: %w", w.Table, err)
	}
	folder := t.Properties()[table.WriteDataPathKey]
	if folder == "" {
		folder = strings.TrimSuffix(t.Location(), "/") + "/data"
	}
	prefix := fmt.Sprintf("%s/%s-%s-%s-", strings.TrimSuffix(folder, "/"), w.Fingerprint, strings.TrimPrefix(w.Put, "put-"), w.Mode)
	return json.Marshal(order{Table: w.Table, Prefix: prefix, Schema: schema, Spec: spec.ID(), Version: t.Metadata().Version()})
}

// change returns the change of the table.
func (w *work) change(ctx context.Context, t *opened) (table.TableCommit, error) {
	var o order
	if err := json.Unmarshal(w.order, &o); err != nil {
		return table.TableCommit{}, err
	}
	added := make([]ice.DataFile, len(w.files))
	for i, encoded := range w.files {
		f, err := codec.DecodeDataFile(encoded, o.partitions(), o.Schema, o.Version)
		if err != nil {
			return table.TableCommit{}, commit.Refused("a file of a data node: %w", err)
		}
		added[i] = f
	}
	var gone []ice.DataFile
	if w.Mode == protocol.CommitReplace {
		tasks, err := t.Scan().PlanFiles(ctx)
		if err != nil {
			return table.TableCommit{}, fmt.Errorf("the files of %s: %w", w.Table, err)
		}
		for _, task := range tasks {
			gone = append(gone, task.File)
		}
	}
	tx := t.NewTransaction()
	properties := ice.Properties{propertyPut: w.Put, propertyFingerprint: w.Fingerprint, propertyMode: w.Mode}
	err := tx.ReplaceDataFilesWithDataFiles(ctx, gone, added, properties, table.WithoutAutoNameMapping())
	if err != nil && strings.Contains(err.Error(), "already referenced by table") { // iceberg-go has no error of its own for it
		return table.TableCommit{}, commit.Refused("%s has these files already, in a snapshot that has expired: the dataset was committed", w.Table)
	}
	if err != nil {
		return table.TableCommit{}, fmt.Errorf("a snapshot of %s: %w", w.Table, err)
	}
	return tx.TableCommit()
}
