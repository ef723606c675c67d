// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"container/heap"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// entry is a pod in the queue.
type entry struct {
	key     types.NamespacedName
	uid     types.UID
	replica string
	since   time.Time // its position: the pod's creation, later the end of its back-off; it is not tried earlier
	owner   types.UID // empty until it is known

	failures int                                      // number of consecutive failures
	made     map[string]*corev1.PersistentVolumeClaim // claims of the pod that the informer may not contain yet, by name
	check    bool                                     // read claims from the API server: the informer only contains ours

	at int // index in the heap
}

// before orders entries by position, namespace and replica. Replicas that only differ in the number at their end are ordered by the
// number.
func (e *entry) before(other *entry) bool {
	if !e.since.Equal(other.since) {
		return e.since.Before(other.since)
	}
	if e.key.Namespace != other.key.Namespace {
		return e.key.Namespace < other.key.Namespace
	}
	stem, number := splitNumber(e.replica)
	otherStem, otherNumber := splitNumber(other.replica)
	if stem != otherStem {
		return stem < otherStem
	}
	if len(number) != len(otherNumber) {
		return len(number) < len(otherNumber)
	}
	if number != otherNumber {
		return number < otherNumber
	}
	return e.uid < other.uid
}

// splitNumber cuts the digits off the end of a name.
func splitNumber(name string) (stem, number string) {
	stem = strings.TrimRight(name, "0123456789")
	return stem, name[len(stem):]
}

// queue holds entries by key and in order. It is not safe for concurrent use.
type queue struct {
	byKey map[types.NamespacedName]*entry
	order entryHeap
}

func newQueue() *queue { return &queue{byKey: map[types.NamespacedName]*entry{}} }

// add inserts an entry, replacing another one with its key.
func (q *queue) add(e *entry) {
	q.remove(e.key)
	q.byKey[e.key] = e
	heap.Push(&q.order, e)
}

// remove removes the key's entry, if there is one.
func (q *queue) remove(key types.NamespacedName) {
	if e := q.byKey[key]; e != nil {
		delete(q.byKey, key)
		heap.Remove(&q.order, e.at)
	}
}

// move changes the position of an entry of the queue.
func (q *queue) move(e *entry, since time.Time) {
	e.since = since
	heap.Fix(&q.order, e.at)
}

// hasten ends the back-off of the entries of replicas.
func (q *queue) hasten(replicas map[types.NamespacedName]struct{}, now time.Time) {
	if len(replicas) == 0 {
		return
	}
	for key, e := range q.byKey {
		if _, ok := replicas[types.NamespacedName{Namespace: key.Namespace, Name: e.replica}]; ok && e.since.After(now) {
			q.move(e, now)
		}
	}
}

// head is the first entry; nil if the queue is empty.
func (q *queue) head() *entry {
	if len(q.order) == 0 {
		return nil
	}
	return q.order[0]
}

// entryHeap implements heap.Interface.
type entryHeap []*entry

// Len counts the entries.
func (h entryHeap) Len() int { return len(h) }

// Less compares two entries by their indices.
func (h entryHeap) Less(i, j int) bool { return h[i].before(h[j]) }

// Swap exchanges two entries.
func (h entryHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

// Push appends an entry.
func (h *entryHeap) Push(x any) {
	e, _ := x.(*entry)
	e.at = len(*h)
	*h = append(*h, e)
}

// Pop removes the last entry.
func (h *entryHeap) Pop() any {
	last := len(*h) - 1
	e := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	return e
}
