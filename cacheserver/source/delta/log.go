// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"regexp"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kubeflow/datacache/cacheserver/objstore"
)

// Bounds of what is read of a log, which is untrusted.
const (
	maxCommit  = 128 << 20 // bytes of a commit, or of a checkpoint in JSON
	mostLogged = 2_000_000 // files in the log's folder
	logReaders = 16        // files of the log that are read at the same time
)

// logFolder is the folder of the log in the table's folder.
const logFolder = "_delta_log"

// tableLog is the listing of a table's log.
type tableLog struct {
	store       *objstore.Store
	root        string // URI of the table's folder, without a slash at its end
	commits     map[int64]objstore.Entry
	checkpoints map[int64][]objstore.Entry // of each version, the files of one complete checkpoint
	latest      int64
}

var (
	commitName     = regexp.MustCompile(`^(\d{20})\.json$`)
	checkpointName = regexp.MustCompile(`^(\d{20})\.checkpoint\.(?:\d{10}\.(\d{10})\.parquet|parquet|[0-9A-Fa-f-]{36}\.(?:parquet|json))$`)
)

// listLog lists the log of the table in a folder. It doesn't read _last_checkpoint, which only spares a listing.
func listLog(ctx context.Context, store *objstore.Store, folder string) (*tableLog, error) {
	l := &tableLog{store: store, root: strings.TrimRight(folder, "/"), commits: map[int64]objstore.Entry{}, checkpoints: map[int64][]objstore.Entry{}, latest: -1}
	parts := map[string][]objstore.Entry{} // by version and number of parts
	n := 0
	for e, err := range store.List(ctx, l.root+"/"+logFolder) {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s is no Delta table: it has no folder %s: check the address: %w", folder, logFolder, err)
		}
		if err != nil {
			return nil, fmt.Errorf("list the log of %s: %w", folder, err)
		}
		if n++; n > mostLogged {
			return nil, fmt.Errorf("%s/%s has more than %d files, at most that many are read: let its engine clean the log", folder, logFolder, mostLogged)
		}
		if m := commitName.FindStringSubmatch(e.Path); m != nil {
			if version, err := strconv.ParseInt(m[1], 10, 64); err == nil {
				l.commits[version], l.latest = e, max(l.latest, version)
			}
		}
		m := checkpointName.FindStringSubmatch(e.Path)
		if m == nil {
			continue
		}
		version, err := strconv.ParseInt(m[1], 10, 64)
		if err != nil {
			continue
		}
		of := []objstore.Entry{e}
		if m[2] != "" {
			parts[m[1]+m[2]] = append(parts[m[1]+m[2]], e)
			if of = parts[m[1]+m[2]]; strconv.Itoa(len(of)) != strings.TrimLeft(m[2], "0") {
				continue
			}
		}
		l.checkpoints[version], l.latest = of, max(l.latest, version)
	}
	if l.latest < 0 {
		return nil, fmt.Errorf("%s is no Delta table: %s has neither commits nor checkpoints: check the address", folder, logFolder)
	}
	return l, nil
}

// replay returns the state of the table at a version; nil: the latest one.
func (l *tableLog) replay(ctx context.Context, wanted *int64) (*state, int64, error) {
	version := l.latest
	if wanted != nil {
		version = *wanted
	}
	if version > l.latest || version < 0 {
		return nil, 0, fmt.Errorf("version %d of %s does not exist: the latest one is %d", version, l.root, l.latest)
	}
	s, err := l.replayTo(ctx, version)
	if err == nil {
		err = s.check()
	}
	if err != nil {
		return nil, 0, fmt.Errorf("version %d of %s: %w", version, l.root, err)
	}
	return s, version, nil
}

func (l *tableLog) replayTo(ctx context.Context, version int64) (*state, error) {
	s := &state{root: l.root, files: map[fileKey]*file{}}
	base := int64(-1)
	for v := range l.checkpoints {
		if v <= version {
			base = max(base, v)
		}
	}
	for v := base + 1; v <= version; v++ {
		if _, ok := l.commits[v]; ok {
			continue
		}
		if base < 0 && v == 0 && len(l.checkpoints) > 0 {
			return nil, fmt.Errorf("its log was cleaned up: it has no commit 0, and its first checkpoint is of version %d: name that one or a later one", slices.Min(slices.Collect(maps.Keys(l.checkpoints))))
		}
		return nil, fmt.Errorf("commit %s/%020d.json is missing: restore it, or name a version before it", logFolder, v)
	}
	if base >= 0 {
		actions, err := l.checkpoint(ctx, l.checkpoints[base])
		if err == nil {
			err = s.apply(actions)
		}
		if err != nil {
			return nil, fmt.Errorf("checkpoint of version %d: %w", base, err)
		}
	}
	commits := make([][]action, version-base)
	if err := each(ctx, len(commits), func(ctx context.Context, i int) (err error) {
		commits[i], err = l.readJSON(ctx, l.commits[base+1+int64(i)])
		return err
	}); err != nil {
		return nil, err
	}
	for i, actions := range commits {
		if err := s.apply(actions); err != nil {
			return nil, fmt.Errorf("commit %d: %w", base+1+int64(i), err)
		}
	}
	return s, nil
}

// each calls read for 0 to n-1, some at the same time.
func each(ctx context.Context, n int, read func(ctx context.Context, i int) error) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(logReaders)
	for i := range n {
		group.Go(func() error { return read(ctx, i) })
	}
	return group.Wait()
}

// readJSON reads the actions of a commit, or of a checkpoint in JSON.
func (l *tableLog) readJSON(ctx context.Context, e objstore.Entry) ([]action, error) {
	text, err := l.store.ReadAtMost(ctx, e.URI, maxCommit)
	if err != nil {
		return nil, err
	}
	actions, err := parseActions(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: restore it", e.URI, err)
	}
	if len(actions) == 0 {
		return nil, fmt.Errorf("%s: it has no actions, as if its writer had been cut off: restore it, or remove it if no version follows", e.URI)
	}
	return actions, nil
}

// check returns an error if the table can't be read.
func (s *state) check() error {
	if s.protocol == nil || s.metaData == nil {
		return errors.New("its log has no action protocol or metaData: restore the log")
	}
	if err := s.protocol.check(); err != nil {
		return err
	}
	seen := make(map[string]bool, len(s.files))
	for key := range s.files {
		if seen[key.uri] {
			return fmt.Errorf("its log has file %s twice, with different deletion vectors, which would double its rows: restore an earlier version", key.uri)
		}
		seen[key.uri] = true
	}
	return nil
}

// before returns the last version that was committed by a time.
func (l *tableLog) before(ctx context.Context, at time.Time) (int64, error) {
	s, _, err := l.replay(ctx, nil)
	if err != nil {
		return 0, err
	}
	versions, recorded := s.metaData.around(slices.Sorted(maps.Keys(l.commits)), at)
	times := make([]time.Time, len(versions)) // of modification; copying the log may have changed their order
	var latest time.Time
	for i, v := range versions {
		if m := l.commits[v].Modified; m.After(latest) {
			latest = m
		}
		times[i] = latest
	}
	var failed error
	later := sort.Search(len(versions), func(i int) bool {
		if recorded && failed == nil {
			times[i], failed = l.recordedTime(ctx, versions[i])
		}
		return times[i].After(at)
	})
	switch {
	case failed != nil:
		return 0, failed
	case len(versions) == 0 || !recorded && latest.IsZero():
		return 0, fmt.Errorf("%s: nothing tells when its versions were committed: name one by its number", l.root)
	case later == 0:
		return 0, fmt.Errorf("%s: version %d, the first one that its log has, is of %s, which is after %s: name a later time", l.root, versions[0], times[0].UTC().Format(time.RFC3339Nano), at.Format(time.RFC3339Nano))
	}
	return versions[later-1], nil
}

// around returns those of the versions among which the one of a time is, and whether their commits record their times.
func (m *metaData) around(versions []int64, at time.Time) (some []int64, recorded bool) {
	if m.property("delta.enableInCommitTimestamps") != "true" {
		return versions, false
	}
	number := func(name string) int64 {
		n, err := strconv.ParseInt(m.property(name), 10, 64)
		if err != nil {
			return 0 // all commits record it
		}
		return n
	}
	first, _ := slices.BinarySearch(versions, number("delta.inCommitTimestampEnablementVersion"))
	if at.Before(time.UnixMilli(number("delta.inCommitTimestampEnablementTimestamp"))) {
		return versions[:first], false
	}
	return versions[first:], true
}

// recordedTime is the time that a commit records.
func (l *tableLog) recordedTime(ctx context.Context, version int64) (time.Time, error) {
	actions, err := l.readJSON(ctx, l.commits[version])
	if err != nil {
		return time.Time{}, err
	}
	for _, a := range actions {
		if a.CommitInfo != nil && a.CommitInfo.At != nil {
			return time.UnixMilli(*a.CommitInfo.At), nil
		}
	}
	return time.Time{}, fmt.Errorf("commit %d of %s records no time (commitInfo.inCommitTimestamp), though the table says that it does: name the version by its number", version, l.root)
}
