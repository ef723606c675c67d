// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

// Reasons of the events on TrainJobs and DataCaches, and of those on runtimes.
const (
	EventProvisioning = "CacheProvisioning"
	EventLoading      = "CacheLoading"
	EventReady        = "CacheReady"
	EventDegraded     = "CacheDegraded"
	EventFailed       = "CacheFailed"
	EventReleased     = "CacheReleased"

	EventNoTwin    = "NoCacheTwin"
	EventTwinTaken = "CacheTwinNameTaken"
)

// maxTold bounds to how many users of a shared cache each of its events goes.
const maxTold = 20

// maxSaid bounds what a teller remembers.
const maxSaid = 10_000

// happening is one event before it is said of somebody.
type happening struct{ kind, reason, message string }

func normal(reason, format string, args ...any) *happening {
	return &happening{corev1.EventTypeNormal, reason, cut(fmt.Sprintf(format, args...))}
}

func warning(reason, format string, args ...any) *happening {
	return &happening{corev1.EventTypeWarning, reason, cut(fmt.Sprintf(format, args...))}
}

// change is the event for the step from one status to the next; nil where people have nothing to learn.
func change(dc *v1alpha1.DataCache, old, next *v1alpha1.DataCacheStatus) *happening {
	was, is := readyCondition(old), readyCondition(next)
	if old.State == next.State || isLoading(old.State) && isLoading(next.State) {
		return stuckness(dc, was.reason, next, is)
	}
	switch next.State {
	case v1alpha1.StatePending:
		if is.reason != reasonStarting {
			return stuckness(dc, was.reason, next, is)
		}
		return normal(EventProvisioning, "cache %s: starting a head and %d data nodes", dc.Name, dc.Spec.Arrow.DataNodes)
	case v1alpha1.StatePlanning, v1alpha1.StateLoading:
		return normal(EventLoading, "cache %s: loading table %s", dc.Name, dc.Spec.Arrow.Table)
	case v1alpha1.StateReady:
		return normal(EventReady, "cache %s: %s, at %s", dc.Name, is.message, next.Endpoint)
	case v1alpha1.StateDegraded:
		return warning(EventDegraded, "cache %s: %s", dc.Name, is.message)
	case v1alpha1.StateFailed:
		return warning(EventFailed, "cache %s: %s", dc.Name, is.message)
	case v1alpha1.StateReleased:
		if old.State == "" {
			return nil
		}
		return normal(EventReleased, "cache %s: memory freed: %s", dc.Name, is.message)
	}
	return nil
}

func isLoading(s v1alpha1.State) bool {
	return s == v1alpha1.StatePlanning || s == v1alpha1.StateLoading
}

// stuckness is the event for a cache whose pods have begun not to get on, or for another reason than before.
func stuckness(dc *v1alpha1.DataCache, before string, next *v1alpha1.DataCacheStatus, is verdict) *happening {
	switch is.reason {
	case before, reasonStarting, reasonUnreachable, reasonPlanning, reasonLoading, reasonLoaded, reasonReloading, reasonFailed, reasonReleased:
		return nil
	}
	switch {
	case next.State == v1alpha1.StateDegraded:
		return warning(EventDegraded, "cache %s: %s", dc.Name, is.message)
	case isLoading(next.State):
		return warning(EventLoading, "cache %s: %s", dc.Name, is.message)
	case is.reason == reasonNameTaken || is.reason == reasonRefused:
		return warning(EventFailed, "cache %s: %s", dc.Name, is.message)
	}
	return warning(EventProvisioning, "cache %s: %s", dc.Name, is.message)
}

func readyCondition(s *v1alpha1.DataCacheStatus) verdict {
	c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionReady)
	if c == nil {
		return verdict{state: s.State}
	}
	return verdict{state: s.State, reason: c.Reason, message: c.Message}
}

// teller says events of objects of one kind. Goroutines may share it.
//
// Events are of core/v1 with firstTimestamp, which the recorder of client-go's tools/record writes: the Kubeflow SDK's get_job_events
// leaves out any other, and any that is not on the TrainJob, its JobSet, Jobs and pods.
type teller struct {
	recorder record.EventRecorder

	mu   sync.Mutex
	said map[types.NamespacedName]string // what tellOnce said last
}

func newTeller(recorder record.EventRecorder) *teller {
	return &teller{recorder: recorder, said: map[types.NamespacedName]string{}}
}

func (t *teller) tell(object client.Object, h *happening) {
	t.recorder.Event(object, h.kind, h.reason, h.message)
}

// tellOnce is tell for what is found anew in each reconciliation: the same is not said of an object twice in a row.
func (t *teller) tellOnce(object client.Object, h *happening) {
	key, text := client.ObjectKeyFromObject(object), string(object.GetUID())+h.reason+h.message
	t.mu.Lock()
	again := t.said[key] == text
	if len(t.said) >= maxSaid {
		clear(t.said) // rather an event too many than a map that grows with every job there ever was
	}
	t.said[key] = text
	t.mu.Unlock()
	if !again {
		t.tell(object, h)
	}
}

// forget is for an object that is well again or gone.
func (t *teller) forget(key types.NamespacedName) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.said, key)
}
