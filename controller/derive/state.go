// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package derive

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/controller/podstate"
)

// longestEnd is how much is told of what a pod wrote at its end.
const longestEnd = 500

// state is what is known of a step.
type state struct {
	name     string // of the dataset
	dataset  *v1alpha1.Dataset
	job      *batchv1.Job
	pods     []*corev1.Pod
	warnings []corev1.Event // if there are no pods
	now      time.Time
}

// ended returns since when the Job has ended in a way; nil if it has not.
func (s *state) ended(kind batchv1.JobConditionType) *batchv1.JobCondition {
	for i := range s.job.Status.Conditions {
		if c := &s.job.Status.Conditions[i]; c.Type == kind && c.Status == corev1.ConditionTrue {
			return c
		}
	}
	return nil
}

// again reports whether the dataset's rows are lost, so that the step must make them again.
func (s *state) again() bool {
	done := s.ended(batchv1.JobComplete)
	return done != nil && s.dataset != nil && s.dataset.State == "Failed" && s.now.Sub(done.LastTransitionTime.Time) > seenWithin
}

// condition returns the condition Derived.
func (s *state) condition() *metav1.Condition {
	is := func(reason, format string, args ...any) *metav1.Condition {
		return &metav1.Condition{Reason: reason, Message: fmt.Sprintf(format, args...)}
	}
	fix := fmt.Sprintf("; correct spec.arrow.derive, or set the annotation %s to another value to run it again", kube.AnnotationRetry)
	if failed := s.ended(batchv1.JobFailed); failed != nil {
		return is(v1alpha1.ReasonDeriveFailed, "Job %s failed: %s%s", s.job.Name, cmp.Or(s.lastFailure(), failed.Message), fix)
	}
	if done := s.ended(batchv1.JobComplete); done != nil {
		switch {
		case s.dataset != nil && s.dataset.State != "Failed":
			c := is(v1alpha1.ReasonDerived, "dataset %s has %d rows", s.name, s.dataset.Rows)
			c.Status = metav1.ConditionTrue
			return c
		case s.now.Sub(done.LastTransitionTime.Time) > seenWithin:
			return is(v1alpha1.ReasonDeriveFailed, "Job %s has ended, and there is no dataset %s: the command must put it%s", s.job.Name, s.name, fix)
		}
		return is(v1alpha1.ReasonDeriving, "Job %s has ended; the cache has not listed dataset %s yet", s.job.Name, s.name)
	}
	for _, pod := range podstate.ByName(s.pods) {
		if pod.Status.Phase == corev1.PodFailed {
			continue
		}
		if t := podstate.PodTrouble(pod); t != nil {
			return is(t.Reason, "%s", t.Message)
		}
	}
	for i := range s.warnings {
		if e := &s.warnings[i]; e.InvolvedObject.UID == s.job.UID && s.job.UID != "" {
			return is(cmp.Or(podstate.Word(e.Reason), v1alpha1.ReasonDeriving), "Job %s: %s", s.job.Name, e.Message)
		}
	}
	c := is(v1alpha1.ReasonDeriving, "Job %s makes dataset %s: %d of %d workers have ended", s.job.Name, s.name, s.job.Status.Succeeded, *s.job.Spec.Completions)
	if failure := s.lastFailure(); failure != "" {
		c.Message += "; before, " + failure
	}
	return c
}

// lastFailure says how the pod ended that failed last; "" if none has.
func (s *state) lastFailure() string {
	var last *corev1.Pod
	for _, pod := range podstate.ByName(s.pods) {
		if pod.Status.Phase == corev1.PodFailed && (last == nil || last.CreationTimestamp.Before(&pod.CreationTimestamp)) {
			last = pod
		}
	}
	if last == nil {
		return ""
	}
	text := podstate.EndOf(last)
	if len(text) > longestEnd { // of a traceback, the end says what happened
		text = "... " + strings.ToValidUTF8(text[len(text)-longestEnd:], "")
	}
	return fmt.Sprintf("pod %s failed: %s", last.Name, text)
}
