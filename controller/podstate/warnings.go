// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package podstate

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

const (
	// warningPatience is how long pods may be missing, or their containers not started, before events are read: most start at once.
	warningPatience = 3 * time.Second
	// warningsAge is how long the events read for a namespace are cached.
	warningsAge = 2 * time.Second
)

// Warnings reads the Warning events of namespaces, which are the only source for why a StatefulSet can't create its pods or a volume
// can't be mounted. Events are read once per warningsAge, however many caches of a namespace wait. It is safe for concurrent use.
type Warnings struct {
	Live client.Reader
	Now  func() time.Time

	mu   sync.Mutex
	kept map[string]namespaceWarnings
}

type namespaceWarnings struct {
	read   time.Time
	events []corev1.Event
}

// Of returns the Warning events of a namespace, which must not be changed.
func (w *Warnings) Of(ctx context.Context, namespace string) ([]corev1.Event, error) {
	w.mu.Lock()
	defer w.mu.Unlock() // held while reading too: concurrent callers need the same result
	now := w.Now()
	if kept, ok := w.kept[namespace]; ok && now.Sub(kept.read) < warningsAge {
		return kept.events, nil
	}
	for name, kept := range w.kept {
		if now.Sub(kept.read) >= warningsAge {
			delete(w.kept, name)
		}
	}
	var list corev1.EventList
	if err := w.Live.List(ctx, &list, client.InNamespace(namespace), client.MatchingFields{"type": corev1.EventTypeWarning}); err != nil {
		return nil, fmt.Errorf("list Warning events of namespace %s: %w", namespace, err)
	}
	if w.kept == nil {
		w.kept = map[string]namespaceWarnings{}
	}
	w.kept[namespace] = namespaceWarnings{now, list.Items}
	return list.Items, nil
}

// NeedsWarnings reports whether the pods have been incomplete for so long, without a visible cause, that events should be read.
func NeedsWarnings(set *lws.LeaderWorkerSet, pods []*corev1.Pod, now time.Time) bool {
	if now.Sub(newest(set, pods)) < warningPatience || TroubleOf(pods) != nil {
		return false
	}
	return len(pods) < int(WantedPods(set)) || slices.ContainsFunc(pods, waitsSilently)
}

// newest is the creation time of the last pod, or of the set if there is none.
func newest(set *lws.LeaderWorkerSet, pods []*corev1.Pod) time.Time {
	last := set.CreationTimestamp.Time
	for _, pod := range pods {
		if made := pod.CreationTimestamp.Time; made.After(last) {
			last = made
		}
	}
	return last
}

// waitsSilently reports whether only events say why a pod does not start.
func waitsSilently(pod *corev1.Pod) bool { return isStarting(pod) || awaitsClaim(pod) }

// awaitsClaim reports whether the claim of an ephemeral volume of a pod is not made yet, be it for a second, or for good because a quota refuses it.
// The scheduler says only that it is missing (k8s.io/component-helpers storage/ephemeral, kubernetes plugins/volumebinding).
func awaitsClaim(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && strings.Contains(c.Message, "waiting for ephemeral volume controller")
	})
}

// isStarting reports whether a pod is scheduled and none of its containers has started.
func isStarting(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && pod.Status.Phase == corev1.PodPending && slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue
	})
}

// TroubleOfEvents returns what the newest relevant event says about pods that are missing or don't start; nil if there is none. An
// event about a set that is older than one of its pods is obsolete.
func TroubleOfEvents(set *lws.LeaderWorkerSet, pods []*corev1.Pod, events []corev1.Event) *Trouble {
	made := newest(set, pods).Truncate(time.Second)
	missing := len(pods) < int(WantedPods(set))
	var last *corev1.Event
	for i := range events {
		e := &events[i]
		ofSet := missing && strings.HasPrefix(e.Reason, "Failed") && isOfSet(set, e) && !TimeOf(e).Before(made)
		ofPod := slices.ContainsFunc(pods, func(pod *corev1.Pod) bool {
			return waitsSilently(pod) && e.Reason != "FailedScheduling" && e.InvolvedObject.UID == pod.UID
		})
		if (ofSet || ofPod) && (last == nil || TimeOf(last).Before(TimeOf(e))) {
			last = e
		}
	}
	if last == nil {
		return nil
	}
	return &Trouble{cmp.Or(Word(last.Reason), "PodsFailed"), fmt.Sprintf("%s %s: %s", last.InvolvedObject.Kind, last.InvolvedObject.Name, last.Message)}
}

// isOfSet reports whether an event is about the LeaderWorkerSet or one of its StatefulSets: <name> for heads, <name>-<copy> for data
// nodes.
func isOfSet(set *lws.LeaderWorkerSet, e *corev1.Event) bool {
	switch e.InvolvedObject.Kind {
	case "LeaderWorkerSet":
		return e.InvolvedObject.Name == set.Name
	case "StatefulSet":
		rest, ok := strings.CutPrefix(e.InvolvedObject.Name, set.Name)
		group := strings.TrimPrefix(rest, "-")
		return ok && (rest == "" || rest != group && group != "" && strings.Trim(group, "0123456789") == "")
	}
	return false
}

// FirstTimeOf is when an event, of either events API, was first observed.
func FirstTimeOf(e *corev1.Event) time.Time {
	if e.FirstTimestamp.IsZero() {
		return e.CreationTimestamp.Time
	}
	return e.FirstTimestamp.Time
}

// TimeOf is when an event, of either events API, was last observed.
func TimeOf(e *corev1.Event) time.Time {
	last := e.CreationTimestamp.Time
	seen := []time.Time{e.LastTimestamp.Time, e.EventTime.Time}
	if e.Series != nil {
		seen = append(seen, e.Series.LastObservedTime.Time)
	}
	for _, at := range seen {
		if at.After(last) {
			last = at
		}
	}
	return last
}
