// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"fmt"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
)

// Reasons of the events on jobs; EventRefused, EventTaken and EventStranded are recorded on the pod as well.
const (
	EventWaiting  = "ClaimsWaiting"
	EventReady    = "ClaimsReady"
	EventRefused  = "ClaimRefused"
	EventTaken    = "ClaimTaken"
	EventStranded = "ClaimStranded"
)

// shortWait is how long a job's pods may wait before an event is recorded.
const shortWait = time.Second

// events records events about claims on jobs: when the first pod of a job has to wait, and when none waits any more. So their number
// does not grow with the number of pods. It is not safe for concurrent use.
type events struct {
	recorder record.EventRecorder
	jobs     map[types.UID]*waitingJob
}

// waitingJob is a job with pods in the queue.
type waitingJob struct {
	reference             *corev1.ObjectReference
	began                 time.Time
	waiting, opened, told int // number of pods; told is 1 once ClaimsWaiting was recorded
}

func newEvents(recorder record.EventRecorder) *events {
	return &events{recorder: recorder, jobs: map[types.UID]*waitingJob{}}
}

// joined counts a pod when its owner is known.
func (v *events) joined(e *entry, namespace string, owner metav1.OwnerReference) {
	if e.owner != "" {
		return
	}
	e.owner = owner.UID
	job := v.jobs[owner.UID]
	if job == nil {
		job = &waitingJob{reference: referenceTo(namespace, owner), began: time.Now()}
		v.jobs[owner.UID] = job
	}
	job.waiting++
}

func (v *events) opened(e *entry) {
	if job := v.jobs[e.owner]; job != nil {
		job.opened++
	}
}

// left is called for a pod that was removed from the queue.
func (v *events) left(e *entry) {
	job := v.jobs[e.owner]
	if job == nil {
		return
	}
	if job.waiting--; job.waiting > 0 {
		return
	}
	delete(v.jobs, e.owner)
	if job.told > 0 && job.opened > 0 {
		v.recorder.Eventf(job.reference, corev1.EventTypeNormal, EventReady, "the claims of %d pods are made, after %s",
			job.opened, time.Since(job.began).Round(time.Second))
	}
}

// tellWaiting records for each job with pods in the queue, once, that they wait.
func (v *events) tellWaiting(q *queue, limiter *rate.Limiter) {
	untold := false
	for _, job := range v.jobs {
		untold = untold || job.told == 0
	}
	if !untold {
		return
	}
	first := map[types.UID]*entry{}
	for _, e := range q.order {
		if best := first[e.owner]; best == nil || e.before(best) {
			first[e.owner] = e
		}
	}
	for uid, job := range v.jobs {
		e := first[uid]
		if job.told > 0 || e == nil {
			continue
		}
		ahead := 0
		for _, other := range q.order {
			if other.before(e) {
				ahead++
			}
		}
		if wait := seconds(ahead+job.waiting, limiter); wait > shortWait {
			job.told = 1
			v.recorder.Eventf(job.reference, corev1.EventTypeNormal, EventWaiting,
				"%d pods wait for claims so far, with %d pods before them; at %g claims a second this takes about %s", job.waiting, ahead, float64(limiter.Limit()), wait.Round(time.Second))
		}
	}
}

// seconds is how long the bucket takes to grant n tokens.
func seconds(n int, limiter *rate.Limiter) time.Duration {
	missing := max(0, float64(n)-limiter.Tokens())
	return time.Duration(missing / float64(limiter.Limit()) * float64(time.Second))
}

// warn records a warning on the pod and, if it is known, on its owner.
func (v *events) warn(pod *corev1.Pod, owner metav1.OwnerReference, why *obstacle) {
	v.recorder.Event(pod, corev1.EventTypeWarning, why.reason, why.message)
	if owner.UID != "" && owner.UID != pod.UID {
		v.recorder.Event(referenceTo(pod.Namespace, owner), corev1.EventTypeWarning, why.reason, fmt.Sprintf("pod %s: %s", pod.Name, why.message))
	}
}

func referenceTo(namespace string, owner metav1.OwnerReference) *corev1.ObjectReference {
	return &corev1.ObjectReference{APIVersion: owner.APIVersion, Kind: owner.Kind, Namespace: namespace, Name: owner.Name, UID: owner.UID}
}
