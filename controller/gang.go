// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"strings"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/internal/gang"
)

// gangPause is the interval at which a running TrainJob's JobSet is looked for, which Trainer creates or resumes at the same time.
const gangPause = time.Second

// gangReconciler makes the PodGroup of a running TrainJob with a cache require the pods that train, and no others. Trainer writes a PodGroup
// when it creates it and while the TrainJob is suspended, so that the two never write in turns.
type gangReconciler struct {
	kube.Applier
	kind schema.GroupVersionKind // of the PodGroups
}

// Reconcile takes the name of a PodGroup, which is also its TrainJob's and its JobSet's.
func (r *gangReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	job := &trainer.TrainJob{}
	if err := r.Client.Get(ctx, request.NamespacedName, job); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if isElsewhere(job) || phaseOf(job) != active {
		return ctrl.Result{}, nil
	}
	group := &unstructured.Unstructured{}
	group.SetGroupVersionKind(r.kind)
	if err := r.Live.Get(ctx, request.NamespacedName, group); err != nil || !metav1.IsControlledBy(group, job) {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	set := &jobset.JobSet{}
	err := r.Live.Get(ctx, request.NamespacedName, set)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("get JobSet %s: %w", request, err)
	}
	if apierrors.IsNotFound(err) || ptr.Deref(set.Spec.Suspend, false) {
		return ctrl.Result{RequeueAfter: gangPause}, nil
	}
	if !metav1.IsControlledBy(set, job) || !gang.Waits(&set.Spec) {
		return ctrl.Result{}, nil
	}
	return kube.RequeueExpected(ctrl.Result{}, r.require(ctx, group, gang.DemandOf(&set.Spec)))
}

// require writes what the PodGroup requires, if it differs.
func (r *gangReconciler) require(ctx context.Context, group *unstructured.Unstructured, want gang.Demand) error {
	var have struct {
		Spec struct {
			MinMember    int32               `json:"minMember"`
			MinResources corev1.ResourceList `json:"minResources"`
		} `json:"spec"`
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(group.Object, &have); err != nil {
		return fmt.Errorf("read PodGroup %s: %w", kube.Qualified(group), err)
	}
	if have.Spec.MinMember == want.Members && equality.Semantic.DeepEqual(have.Spec.MinResources, want.Resources) {
		return nil
	}
	resources := map[string]any{}
	for name, quantity := range want.Resources {
		resources[string(name)] = quantity.String()
	}
	next := group.DeepCopy()
	if err := unstructured.SetNestedField(next.Object, int64(want.Members), "spec", "minMember"); err != nil {
		return fmt.Errorf("write PodGroup %s: %w", kube.Qualified(group), err)
	}
	if err := unstructured.SetNestedField(next.Object, resources, "spec", "minResources"); err != nil {
		return fmt.Errorf("write PodGroup %s: %w", kube.Qualified(group), err)
	}
	if err := r.Client.Patch(ctx, next, client.MergeFromWithOptions(group, client.MergeFromWithOptimisticLock{})); err != nil {
		return r.Failed("patch", group, err)
	}
	log.FromContext(ctx).Info("a gang waits for its training pods alone", "podgroup", kube.Qualified(group), "scheduler", r.kind.Group, "minMember", want.Members)
	return nil
}

// setupGangs reconciles the PodGroups of the gang schedulers that the cluster has.
func setupGangs(mgr ctrl.Manager, o Options, k kube.Applier) error {
	for _, kind := range gang.Kinds {
		if _, err := mgr.GetRESTMapper().RESTMapping(kind.GroupKind(), kind.Version); meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
			mgr.GetLogger().Info("no gangs of a scheduler that is not installed: start again when it is", "scheduler", kind.Group)
			continue
		} else if err != nil {
			return fmt.Errorf("look for PodGroups of %s: %w", kind.Group, err)
		}
		group := &metav1.PartialObjectMetadata{}
		group.SetGroupVersionKind(kind)
		ours := builder.WithPredicates(predicate.NewPredicateFuncs(isOfTrainJob))
		err := ctrl.NewControllerManagedBy(mgr).Named("datacache-gang-"+strings.Split(kind.Group, ".")[1]).
			For(group, ours).
			Watches(&trainer.TrainJob{}, handler.EnqueueRequestsFromMapFunc(sameName), builder.WithPredicates(phaseChanged)).
			Complete(withTraces(o.Tracer, kind.Kind, &gangReconciler{Applier: k, kind: kind}))
		if err != nil {
			return fmt.Errorf("set up the controller of gangs of %s: %w", kind.Group, err)
		}
	}
	return nil
}

// isOfTrainJob reports whether Trainer made an object for a TrainJob.
func isOfTrainJob(object client.Object) bool {
	owner := metav1.GetControllerOf(object)
	return owner != nil && owner.Kind == trainer.TrainJobKind
}

func sameName(_ context.Context, object client.Object) []reconcile.Request {
	return []reconcile.Request{requestFor(client.ObjectKeyFromObject(object))}
}
