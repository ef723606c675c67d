// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/engine"
	"github.com/kubeflow/datacache/controller/fluid"
	"github.com/kubeflow/datacache/internal/view"
)

// Reasons of the events on TrainJobs and DataCaches, and of those on runtimes.
const (
	EventProvisioning = "CacheProvisioning"
	EventLoading      = "CacheLoading"
	EventReady        = "CacheReady"
	EventDegraded     = "CacheDegraded"
	EventFailed       = "CacheFailed"
	EventReleased     = "CacheReleased"
	EventWaits        = "CacheUserWaits" // of a TrainJob that waits although its cache is Ready
	EventNotRead      = "CacheNotRead"

	EventNoTwin    = "NoCacheTwin"
	EventTwinTaken = "CacheTwinNameTaken"
)

// maxRecordedUsers bounds the number of users of a shared cache that get each of its events.
const maxRecordedUsers = 20

// maxRemembered bounds the number of events that an eventRecorder remembers.
const maxRemembered = 10_000

// objectEvent is an event without the object it is about.
type objectEvent struct{ kind, reason, message string }

func normal(reason, format string, args ...any) *objectEvent {
	return &objectEvent{corev1.EventTypeNormal, reason, cut(fmt.Sprintf(format, args...))}
}

func warning(reason, format string, args ...any) *objectEvent {
	return &objectEvent{corev1.EventTypeWarning, reason, cut(fmt.Sprintf(format, args...))}
}

// joinEvents returns one event for those of several caches: a warning if one of them is.
func joinEvents(events []*objectEvent) *objectEvent {
	kind, messages := corev1.EventTypeNormal, make([]string, len(events))
	for i, e := range events {
		messages[i] = e.message
		if e.kind == corev1.EventTypeWarning {
			kind = e.kind
		}
	}
	return &objectEvent{kind, events[0].reason, cut(inOne(messages))}
}

// inOne returns texts as one, without repetitions.
func inOne(texts []string) string { return strings.Join(slices.Compact(texts), "; ") }

// change returns the event for the transition from one status to the next; nil if it is of no interest to users.
func change(dc *v1alpha1.DataCache, e engine.Engine, old, next *v1alpha1.DataCacheStatus) *objectEvent {
	was, is := readyCondition(old), readyCondition(next)
	if old.State == next.State || isLoading(old.State) && isLoading(next.State) {
		return obstacleEvent(dc, was.Reason, next, is)
	}
	switch next.State {
	case v1alpha1.StatePending:
		if is.Reason != engine.ReasonStarting {
			return obstacleEvent(dc, was.Reason, next, is)
		}
		parts, _ := e.Describe(dc)
		return normal(EventProvisioning, "cache %s: starting %s", dc.Name, parts)
	case v1alpha1.StatePlanning, v1alpha1.StateLoading:
		_, data := e.Describe(dc)
		return normal(EventLoading, "cache %s: loading %s", dc.Name, data)
	case v1alpha1.StateReady:
		if next.Endpoint == "" {
			return normal(EventReady, "cache %s: %s", dc.Name, is.Message)
		}
		return normal(EventReady, "cache %s: %s, at %s", dc.Name, is.Message, next.Endpoint)
	case v1alpha1.StateDegraded:
		return warning(EventDegraded, "cache %s: %s", dc.Name, is.Message)
	case v1alpha1.StateFailed:
		return warning(EventFailed, "cache %s: %s", dc.Name, is.Message)
	case v1alpha1.StateReleased:
		if old.State == "" {
			return nil
		}
		return normal(EventReleased, "cache %s: memory freed: %s", dc.Name, is.Message)
	}
	return nil
}

func isLoading(s v1alpha1.State) bool {
	return s == v1alpha1.StatePlanning || s == v1alpha1.StateLoading
}

// obstacleEvent returns the event for a cache whose pods are newly prevented from running, or for a new reason.
func obstacleEvent(dc *v1alpha1.DataCache, before string, next *v1alpha1.DataCacheStatus, is engine.Condition) *objectEvent {
	if is.Reason == before || !view.IsObstacle(is.Reason) {
		return nil
	}
	switch {
	case next.State == v1alpha1.StateDegraded:
		return warning(EventDegraded, "cache %s: %s", dc.Name, is.Message)
	case isLoading(next.State):
		return warning(EventLoading, "cache %s: %s", dc.Name, is.Message)
	case is.Reason == engine.ReasonNameTaken || is.Reason == engine.ReasonRefused || is.Reason == fluid.ReasonMissing:
		return warning(EventFailed, "cache %s: %s", dc.Name, is.Message)
	}
	return warning(EventProvisioning, "cache %s: %s", dc.Name, is.Message)
}

func readyCondition(s *v1alpha1.DataCacheStatus) engine.Condition {
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReady)
	if c == nil {
		return engine.Condition{State: s.State}
	}
	return engine.Condition{State: s.State, Reason: c.Reason, Message: c.Message}
}

// eventRecorder records events on objects of one kind. It is safe for concurrent use.
//
// Events are written by client-go's tools/record as core/v1 events with firstTimestamp: the Kubeflow SDK's get_job_events omits all
// others, and those that are not on the TrainJob, its JobSet, Jobs and pods.
type eventRecorder struct {
	sink record.EventRecorder

	mu         sync.Mutex
	lastEvents map[types.NamespacedName]string // the last event of recordOnce by object
}

func newEventRecorder(sink record.EventRecorder) *eventRecorder {
	return &eventRecorder{sink: sink, lastEvents: map[types.NamespacedName]string{}}
}

func (r *eventRecorder) record(object client.Object, h *objectEvent) {
	r.sink.Event(object, h.kind, h.reason, h.message)
}

// recordOnce is record for what every reconciliation finds again: it does not record the same event for an object twice in a row.
func (r *eventRecorder) recordOnce(object client.Object, h *objectEvent) {
	key, text := client.ObjectKeyFromObject(object), string(object.GetUID())+h.reason+h.message
	r.mu.Lock()
	again := r.lastEvents[key] == text
	if len(r.lastEvents) >= maxRemembered {
		clear(r.lastEvents) // a repeated event is better than a map that grows with every job
	}
	r.lastEvents[key] = text
	r.mu.Unlock()
	if !again {
		r.record(object, h)
	}
}

// forget must be called for an object that has recovered or is gone.
func (r *eventRecorder) forget(key types.NamespacedName) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.lastEvents, key)
}
