// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/internal/view"
	"github.com/kubeflow/datacache/test/kit/cachetest"
)

// TestPulse checks what is said of the streams of a cache that a training uses.
func TestPulse(t *testing.T) {
	t.Parallel()
	rank := func(rows, clientMS, nodeMS int64, streams int) []view.Reader {
		return []view.Reader{{ReaderKey: view.ReaderKey{Job: "train", Client: "10.0.0.1"}, Streams: streams, Rows: rows, ClientMS: clientMS, NodeMS: nodeMS}}
	}
	for name, c := range map[string]struct {
		seen [][]view.Reader // a minute apart, from noon on
		want *reading
	}{
		"just started":       {[][]view.Reader{nil}, &reading{true, "Read", "TrainJobs read its rows"}},
		"computes a while":   {[][]view.Reader{rank(10, 0, 0, 1), rank(10, 60_000, 0, 1), rank(10, 120_000, 0, 1)}, &reading{true, "Read", "TrainJobs read its rows"}},
		"never asked":        {[][]view.Reader{nil, nil, nil, nil, nil, nil}, &reading{false, "NotRead", "no rank has asked for rows since 12:00:00 UTC"}},
		"asked no more":      {[][]view.Reader{nil, rank(10, 0, 0, 1), nil, nil, nil, nil, nil}, &reading{false, "NotRead", "no rank has asked for rows since 12:01:00 UTC"}},
		"reads, and is back": {[][]view.Reader{nil, rank(10, 0, 0, 1), nil, nil, nil, rank(4, 0, 0, 1), nil}, &reading{true, "Read", "TrainJobs read its rows"}},
		"takes nothing": {
			[][]view.Reader{rank(10, 0, 0, 2), rank(10, 60_000, 0, 2), rank(10, 120_000, 0, 2), rank(10, 180_000, 0, 2), rank(10, 240_000, 0, 2), rank(10, 300_000, 0, 2)},
			&reading{false, "NotRead", "no rank has taken rows from its 2 open streams since 12:00:00 UTC"},
		},
		"gets nothing": {
			[][]view.Reader{rank(10, 5, 0, 2), rank(10, 5, 60_000, 2), rank(10, 5, 120_000, 2), rank(10, 5, 180_000, 2), rank(10, 5, 240_000, 2), rank(10, 5, 300_000, 2)},
			&reading{false, "RanksWait", "the ranks wait for the cache: it has sent nothing on their 2 streams since 12:00:00 UTC"},
		},
		"of two copies": {
			[][]view.Reader{nil, append(rank(10, 0, 0, 1), rank(20, 0, 0, 1)...), append(rank(10, 0, 0, 1), rank(21, 0, 0, 1)...), nil, nil, nil, nil},
			&reading{true, "Read", "TrainJobs read its rows"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var p pulse
			now := cachetest.Noon.Time
			for i, readers := range c.seen {
				now = cachetest.Noon.Add(time.Duration(i) * time.Minute)
				p = p.next(now, readers)
			}
			if diff := cmp.Diff(c.want, p.reading(now, 5*time.Minute), cmp.AllowUnexported(reading{})); diff != "" {
				t.Errorf("reading differs (-want +got):\n%s", diff)
			}
		})
	}
}

// TestWaitsOfUsers checks that a condition does not show what pods of other namespaces wait for, and how many TrainJobs it names.
func TestWaitsOfUsers(t *testing.T) {
	t.Parallel()
	waits := newSentences()
	waits.set(types.NamespacedName{Namespace: "team", Name: "a"}, "pod a-node-0-0: Unschedulable: no GPU")
	waits.set(types.NamespacedName{Namespace: "other", Name: "b"}, "pod b-node-0-0: secret \"payroll\" not found")
	got := waitsOf("team", []string{"other/b", "other/c", "team/a"}, waits)
	want := &reading{false, "TrainJobWaits", "TrainJob other/b waits: its events say for what; TrainJob a waits: pod a-node-0-0: Unschedulable: no GPU"}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(reading{})); diff != "" {
		t.Errorf("reading differs (-want +got):\n%s", diff)
	}
	var users []string
	for _, name := range []string{"p", "q", "r", "s", "t"} {
		users = append(users, "team/"+name)
		waits.set(kube.KeyOf("team/"+name), "x")
	}
	if got, want := waitsOf("team", users, waits).message, "TrainJob p waits: x; TrainJob q waits: x; TrainJob r waits: x; 2 more wait"; got != want {
		t.Errorf("five that wait: %q, want %q", got, want)
	}
	if got := waitsOf("team", []string{"team/idle"}, waits); got != nil {
		t.Errorf("one that waits for nothing: %+v", got)
	}
}

// TestSetReading checks which caches have the condition Read, and that it causes one event.
func TestSetReading(t *testing.T) {
	t.Parallel()
	dc := cachetest.Minimal()
	idle := &reading{false, v1alpha1.ReasonNotRead, "no rank has asked for rows since 12:00:00 UTC"}
	status := func(state v1alpha1.State, users int32, r *reading) *v1alpha1.DataCacheStatus {
		out := &v1alpha1.DataCacheStatus{State: state, Users: users}
		setReading(out, r, 1, cachetest.Noon)
		return out
	}
	ready := status(v1alpha1.StateReady, 1, idle)
	if meta.FindStatusCondition(ready.Conditions, v1alpha1.ConditionRead) == nil {
		t.Fatal("a cache that is Ready and used has no condition Read")
	}
	for name, s := range map[string]*v1alpha1.DataCacheStatus{"not Ready": status(v1alpha1.StateLoading, 1, idle), "not used": status(v1alpha1.StateReady, 0, idle)} {
		if len(s.Conditions) > 0 {
			t.Errorf("a cache that is %s has the conditions %+v", name, s.Conditions)
		}
	}
	read := status(v1alpha1.StateReady, 1, &reading{true, v1alpha1.ReasonRead, "x"})
	waits := status(v1alpha1.StateReady, 1, &reading{false, v1alpha1.ReasonTrainJobWaits, "TrainJob a waits"})
	for name, c := range map[string]struct {
		old, next *v1alpha1.DataCacheStatus
		want      *objectEvent
	}{
		"stands still":    {read, ready, &objectEvent{"Warning", EventNotRead, "cache reviews: no rank has asked for rows since 12:00:00 UTC"}},
		"still does":      {ready, ready, nil},
		"reads again":     {ready, read, nil},
		"has other waits": {read, waits, nil}, // an event of the TrainJob
	} {
		if diff := cmp.Diff(c.want, readEvent(dc, c.old, c.next), cmp.AllowUnexported(objectEvent{})); diff != "" {
			t.Errorf("%s: event differs (-want +got):\n%s", name, diff)
		}
	}
}
