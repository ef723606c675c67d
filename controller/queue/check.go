// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/internal/wellknown"
)

const (
	// DefaultPatience is how long a TrainJob keeps its reserved quota while its cache waits for quota of its own.
	DefaultPatience = 5 * time.Minute
	// longestPause bounds the pause before a Workload may have quota again: half the patience, which doubles each time.
	longestPause = time.Hour
	// look is the interval at which a Workload with quota is looked at while its cache is not loaded.
	look = 2 * time.Second
)

// Wait is what a Workload with quota waits for.
type Wait struct {
	Done    bool      // nothing
	Message string    // what it waits for, or why it does not
	Since   time.Time // since when its cache waits for quota, zero if it does not
}

// Checks decides about Workloads whose ClusterQueue has the AdmissionCheck. All fields are required.
type Checks struct {
	kube.Applier
	Queues   *Queues
	Waits    func(ctx context.Context, w *Workload) (Wait, error)
	Now      func() time.Time
	Patience time.Duration
}

// Reconcile takes the name of a Workload.
func (r *Checks) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	object := NewWorkload()
	if err := r.Queues.Reader.Get(ctx, request.NamespacedName, object); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	w, err := read(object)
	if err != nil {
		return ctrl.Result{}, err
	}
	times, until := pauseOf(w)
	if !until.IsZero() {
		if left := until.Sub(r.Now()); left > 0 {
			return ctrl.Result{RequeueAfter: left}, nil
		}
		return kube.RequeueExpected(ctrl.Result{}, r.activate(ctx, object, true, strconv.Itoa(times)))
	}
	check := w.check()
	if check == nil || check.State != pending || !w.hasQuota() {
		return ctrl.Result{}, nil
	}
	wait, err := r.Waits(ctx, w)
	if err != nil {
		return ctrl.Result{}, err
	}
	left := w.patience(wait, times, r.Patience).Sub(r.Now())
	if !wait.Done && !wait.Since.IsZero() && left <= 0 {
		until := r.Now().Add(pauseAfter(times, r.Patience)).UTC().Format(time.RFC3339)
		return kube.RequeueExpected(ctrl.Result{}, r.activate(ctx, object, false, fmt.Sprint(times+1, " ", until)))
	}
	result := ctrl.Result{RequeueAfter: look}
	if left > 0 {
		result.RequeueAfter = min(look, left)
	}
	if wait.Done {
		check.State, check.Since, result = ready, metav1.NewTime(r.Now()).Rfc3339Copy(), ctrl.Result{}
	}
	if !wait.Done && check.Message == wait.Message {
		return result, nil
	}
	check.Message = wait.Message
	return kube.RequeueExpected(result, r.write(ctx, object, w))
}

// pauseOf returns how often a Workload has given its quota back, and until when it wants none; the zero time if it may have quota.
func pauseOf(w *Workload) (times int, until time.Time) {
	count, at, paused := strings.Cut(w.Annotations[wellknown.AnnotationPause], " ")
	times, _ = strconv.Atoi(count) // 0 if there is none
	if paused && !ptr.Deref(w.Spec.Active, true) {
		until, _ = time.Parse(time.RFC3339, at) // zero if somebody changed it
	}
	return times, until
}

// patience returns when a Workload gives its quota back if its cache has none by then. The time differs by Workload and attempt: of two
// TrainJobs that have the quota which the other one's cache waits for, one must give it back first.
func (w *Workload) patience(wait Wait, times int, patience time.Duration) time.Time {
	since := meta.FindStatusCondition(w.Status.Conditions, quotaReserved).LastTransitionTime.Time
	if wait.Since.After(since) {
		since = wait.Since
	}
	hash := fnv.New32a()
	fmt.Fprint(hash, w.UID, times)
	return since.Add(patience + patience*time.Duration(hash.Sum32()>>24)/256)
}

// pauseAfter doubles each time that quota was given back.
func pauseAfter(times int, patience time.Duration) time.Duration {
	pause := patience / 2
	for i := 0; i < times && pause < longestPause; i++ {
		pause *= 2
	}
	return min(pause, longestPause)
}

// activate sets whether a Workload may have quota. An inactive one gives its quota back at once. The check's state Retry does not do: Kueue
// 0.17 either evicts a Workload only after requeueAfterSeconds, or reserves the same quota for it again before others are tried.
func (r *Checks) activate(ctx context.Context, object *unstructured.Unstructured, active bool, pause string) error {
	changed := object.DeepCopy()
	changed.SetAnnotations(kube.Joined(changed.GetAnnotations(), map[string]string{wellknown.AnnotationPause: pause}))
	if err := unstructured.SetNestedField(changed.Object, active, "spec", "active"); err != nil {
		return fmt.Errorf("write Workload %s: %w", kube.Qualified(object), err)
	}
	if err := r.Client.Patch(ctx, changed, client.MergeFromWithOptions(object, client.MergeFromWithOptimisticLock{})); err != nil {
		return r.Failed("patch", object, err)
	}
	return nil
}

// write writes the checks of a Workload.
func (r *Checks) write(ctx context.Context, object *unstructured.Unstructured, w *Workload) error {
	var checks []any
	for i := range w.Status.Checks {
		fields, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&w.Status.Checks[i])
		if err != nil {
			return fmt.Errorf("write the checks of Workload %s: %w", kube.Qualified(object), err)
		}
		checks = append(checks, fields)
	}
	changed := object.DeepCopy()
	if err := unstructured.SetNestedSlice(changed.Object, checks, "status", "admissionChecks"); err != nil {
		return fmt.Errorf("write the checks of Workload %s: %w", kube.Qualified(object), err)
	}
	if err := r.Client.Status().Patch(ctx, changed, client.MergeFromWithOptions(object, client.MergeFromWithOptimisticLock{})); err != nil {
		return r.Failed("patch the status of", object, err)
	}
	return nil
}

// Activate is the reconciler of AdmissionChecks: Kueue uses a ClusterQueue only if its checks have the condition Active.
func (r *Checks) Activate() reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
		check := NewCheck()
		if err := r.Queues.Reader.Get(ctx, request.NamespacedName, check); err != nil {
			return ctrl.Result{}, client.IgnoreNotFound(err)
		}
		name, _, _ := unstructured.NestedString(check.Object, "spec", "controllerName")
		conditions, _, _ := unstructured.NestedSlice(check.Object, "status", "conditions")
		if check.GetName() != CheckName || name != checkController || slices.ContainsFunc(conditions, isActive) {
			return ctrl.Result{}, nil
		}
		changed := check.DeepCopy()
		active := map[string]any{
			"type": "Active", "status": "True", "reason": "Active", "message": "the manager of datacache answers it",
			"lastTransitionTime": r.Now().UTC().Format(time.RFC3339), "observedGeneration": check.GetGeneration(),
		}
		if err := unstructured.SetNestedSlice(changed.Object, []any{active}, "status", "conditions"); err != nil {
			return ctrl.Result{}, fmt.Errorf("write AdmissionCheck %s: %w", request.Name, err)
		}
		err := r.Client.Status().Patch(ctx, changed, client.MergeFromWithOptions(check, client.MergeFromWithOptimisticLock{}))
		if err != nil {
			return kube.RequeueExpected(ctrl.Result{}, r.Failed("patch the status of", check, err))
		}
		return ctrl.Result{}, nil
	})
}

func isActive(condition any) bool {
	c, _ := condition.(map[string]any)
	return c["type"] == "Active" && c["status"] == "True"
}
