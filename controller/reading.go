// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/internal/view"
)

// defaultIdleAfter is how long no rank may get rows before the condition Read says so: training may compute for minutes between two reads.
const defaultIdleAfter = 5 * time.Minute

// maxNamedWaits is the maximum number of TrainJobs whose waits a condition names.
const maxNamedWaits = 3

// pulse is when a rank of a cache last got rows.
type pulse struct {
	moved   time.Time // the last observation in which a reader had more rows than in the one before; at first the first one
	readers map[view.ReaderKey]view.Reader
	streams int  // open now
	starved bool // since the observation before, streams waited for the cache longer than for their clients
}

// next returns the pulse after an observation.
func (p pulse) next(now time.Time, readers []view.Reader) pulse {
	out := pulse{moved: p.moved, readers: make(map[view.ReaderKey]view.Reader, len(readers))}
	var client, node int64
	for _, r := range readers { // of several copies
		sum := out.readers[r.ReaderKey]
		r.Streams, r.Rows, r.ClientMS, r.NodeMS = r.Streams+sum.Streams, r.Rows+sum.Rows, r.ClientMS+sum.ClientMS, r.NodeMS+sum.NodeMS
		out.readers[r.ReaderKey] = r
	}
	for key, r := range out.readers {
		since := r.Since(p.readers[key])
		if since.Rows > 0 {
			out.moved = now
		}
		out.streams += r.Streams
		client, node = client+since.ClientMS, node+since.NodeMS
	}
	if p.readers == nil {
		out.moved = now
	}
	out.starved = node > client
	return out
}

// reading says whether the rows of a cache are read; reason and message as of a condition.
type reading struct {
	is              bool
	reason, message string
}

// reading returns what the pulse says at now.
func (p pulse) reading(now time.Time, idleAfter time.Duration) *reading {
	since := p.moved.UTC().Format(time.TimeOnly) + " UTC"
	switch {
	case now.Sub(p.moved) < idleAfter:
		return &reading{true, v1alpha1.ReasonRead, "TrainJobs read its rows"}
	case p.streams == 0:
		return &reading{false, v1alpha1.ReasonNotRead, "no rank has asked for rows since " + since}
	case p.starved:
		return &reading{false, v1alpha1.ReasonRanksWait, fmt.Sprintf("the ranks wait for the cache: it has sent nothing on their %d streams since %s", p.streams, since)}
	}
	return &reading{false, v1alpha1.ReasonNotRead, fmt.Sprintf("no rank has taken rows from its %d open streams since %s", p.streams, since)}
}

// waitsOf joins what TrainJobs wait for besides the cache; nil if they wait for nothing. What those of other namespaces wait for is not said:
// their pods are nobody's business here.
func waitsOf(namespace string, users []string, waits *sentences) *reading {
	var texts []string
	for _, user := range users {
		switch text := waits.of(kube.KeyOf(user)); {
		case text == "":
		case kube.KeyOf(user).Namespace == namespace:
			texts = append(texts, fmt.Sprintf("TrainJob %s waits: %s", kube.KeyOf(user).Name, text))
		default:
			texts = append(texts, fmt.Sprintf("TrainJob %s waits: its events say for what", user))
		}
	}
	if len(texts) == 0 {
		return nil
	}
	if more := len(texts) - maxNamedWaits; more > 0 {
		texts = append(texts[:maxNamedWaits], fmt.Sprintf("%d more wait", more))
	}
	return &reading{false, v1alpha1.ReasonTrainJobWaits, strings.Join(texts, "; ")}
}

// setReading sets the condition Read of a cache that is Ready and used, and removes it from any other.
func setReading(out *v1alpha1.DataCacheStatus, r *reading, generation int64, now metav1.Time) {
	if out.State != v1alpha1.StateReady || out.Users == 0 {
		meta.RemoveStatusCondition(&out.Conditions, v1alpha1.ConditionRead)
		return
	}
	if r == nil {
		return
	}
	c := metav1.Condition{
		Type: v1alpha1.ConditionRead, Status: metav1.ConditionFalse, Reason: r.reason, Message: cut(r.message), ObservedGeneration: generation, LastTransitionTime: now,
	}
	if r.is {
		c.Status = metav1.ConditionTrue
	}
	meta.SetStatusCondition(&out.Conditions, c)
}

// readEvent returns the event for a cache that is no longer read; nil if there is nothing to say, or its TrainJobs have the event.
func readEvent(dc *v1alpha1.DataCache, old, next *v1alpha1.DataCacheStatus) *objectEvent {
	was, is := meta.FindStatusCondition(old.Conditions, v1alpha1.ConditionRead), meta.FindStatusCondition(next.Conditions, v1alpha1.ConditionRead)
	idle := []string{v1alpha1.ReasonNotRead, v1alpha1.ReasonRanksWait}
	if is == nil || !slices.Contains(idle, is.Reason) || was != nil && was.Reason == is.Reason {
		return nil
	}
	return warning(EventNotRead, "cache %s: %s", dc.Name, is.Message)
}
