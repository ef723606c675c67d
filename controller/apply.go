// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"
)

// foreignError says that an object of somebody else has the name that we need. It is never adopted, changed or deleted: it may serve
// others.
type foreignError struct{ kind, name, owner string }

func (e *foreignError) Error() string {
	return fmt.Sprintf("%s %s exists and belongs to %s: delete or rename it, or choose another name", e.kind, e.name, e.owner)
}

// errGoing says that an object of the last owner of the same name is still there; the garbage collector takes it.
var errGoing = errors.New("the object of an earlier owner of the same name still goes")

const (
	conflictPause = 200 * time.Millisecond // lets the informers see the write that was lost against
	goingPause    = 2 * time.Second        // lets the garbage collector work
)

// applier makes objects be as wanted. Objects are created, then patched under their resourceVersion; server-side apply is not used,
// for it can't say "create only" and would merge into an object of somebody else.
type applier struct {
	client client.Client // reads from informers, which see objects with LabelManagedBy alone
	live   client.Reader // reads from the API server
}

// apply creates the object or patches what differs of what we say about it. What it returns is the object as it is now, or a
// *foreignError.
func apply[T client.Object](ctx context.Context, k applier, want T) (T, error) {
	have := want.DeepCopyObject().(T) // a copy has the type of what it copies
	key := client.ObjectKeyFromObject(want)
	err := k.client.Get(ctx, key, have)
	if apierrors.IsNotFound(err) {
		return create(ctx, k, want)
	}
	if err != nil {
		return have, k.failed("get", want, err)
	}
	if err := foreign(k.kind(want), have, want); err != nil {
		return have, err
	}
	if have.GetDeletionTimestamp() != nil {
		return have, nil // its going wakes us again
	}
	next := have.DeepCopyObject().(T) // a copy has the type of what it copies
	mergeDesired(next, want)
	if equality.Semantic.DeepEqual(have, next) {
		return have, nil
	}
	if err := k.client.Patch(ctx, next, client.MergeFromWithOptions(have, client.MergeFromWithOptimisticLock{})); err != nil {
		return have, k.failed("patch", want, err)
	}
	return next, nil
}

// create is for an object that the informers don't know: there is none, or it was made a moment ago, or it is not ours.
func create[T client.Object](ctx context.Context, k applier, want T) (T, error) {
	made := want.DeepCopyObject().(T) // a copy has the type of what it copies
	made.SetAnnotations(mergeAnnotations(nil, want.GetAnnotations()))
	err := k.client.Create(ctx, made)
	if err == nil {
		return made, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return made, k.failed("create", want, err)
	}
	have := want.DeepCopyObject().(T) // a copy has the type of what it copies
	if err := k.live.Get(ctx, client.ObjectKeyFromObject(want), have); err != nil {
		return have, k.failed("get", want, err)
	}
	return have, foreign(k.kind(want), have, want)
}

// foreign is nil where the object has the controller that the wanted one has, errGoing where it has an earlier one of the same name, and
// a *foreignError else.
func foreign(kind string, have, want client.Object) error {
	is, wanted := metav1.GetControllerOf(have), metav1.GetControllerOf(want)
	if is != nil && is.UID == wanted.UID {
		return nil
	}
	owner := "nobody that datacache knows"
	if is != nil && is.Kind == wanted.Kind && is.Name == wanted.Name {
		return fmt.Errorf("%s %s: %w", kind, qualified(have), errGoing)
	}
	if is != nil {
		owner = is.Kind + " " + is.Name
	}
	return &foreignError{kind: kind, name: qualified(have), owner: owner}
}

func (k applier) failed(verb string, object client.Object, err error) error {
	return fmt.Errorf("%s %s %s: %w", verb, k.kind(object), qualified(object), err)
}

func (k applier) kind(object runtime.Object) string {
	gvk, err := apiutil.GVKForObject(object, k.client.Scheme())
	if err != nil {
		return fmt.Sprintf("%T", object)
	}
	return gvk.Kind
}

// mergeDesired sets in an object of the API server what we say about it and leaves the rest: defaults, and what others add. A
// LeaderWorkerSet keeps its template, as another one would throw away what its pods have loaded, unless the DataCache's spec asks for other
// pods: then its controller replaces copy after copy.
func mergeDesired(have, want client.Object) {
	if set, ok := have.(*lws.LeaderWorkerSet); ok {
		mergeLeaderWorkerSet(set, want.(*lws.LeaderWorkerSet)) // a pair has one type
	}
	have.SetLabels(joined(have.GetLabels(), want.GetLabels()))
	have.SetAnnotations(mergeAnnotations(have.GetAnnotations(), want.GetAnnotations()))
	switch want := want.(type) {
	case *corev1.ServiceAccount:
		have.(*corev1.ServiceAccount).AutomountServiceAccountToken = want.AutomountServiceAccountToken
	case *corev1.Service:
		spec := &have.(*corev1.Service).Spec
		spec.Type, spec.Selector, spec.Ports, spec.ExternalName = want.Spec.Type, want.Spec.Selector, want.Spec.Ports, want.Spec.ExternalName
		spec.PublishNotReadyAddresses = want.Spec.PublishNotReadyAddresses
	case *networkingv1.NetworkPolicy:
		have.(*networkingv1.NetworkPolicy).Spec = want.Spec
	case *policyv1.PodDisruptionBudget:
		have.(*policyv1.PodDisruptionBudget).Spec = want.Spec
	case *corev1.ConfigMap:
		have.(*corev1.ConfigMap).Data = want.Data
	}
}

// mergeLeaderWorkerSet is for before the annotations are merged: they say what the pods were made by. The size can't change.
func mergeLeaderWorkerSet(have, want *lws.LeaderWorkerSet) {
	have.Spec.Replicas = want.Spec.Replicas
	if madeBy, ok := have.Annotations[annotationPodSettings]; ok && madeBy != want.Annotations[annotationPodSettings] {
		have.Spec.LeaderWorkerTemplate.LeaderTemplate = want.Spec.LeaderWorkerTemplate.LeaderTemplate
		have.Spec.LeaderWorkerTemplate.WorkerTemplate = want.Spec.LeaderWorkerTemplate.WorkerTemplate
	}
}

// mergeAnnotations is have with want over it, without those that we wrote before and no longer want. Which ones we wrote is an annotation
// itself.
func mergeAnnotations(have, want map[string]string) map[string]string {
	applied := strings.Fields(have[annotationApplied])
	if len(want) == 0 && len(applied) == 0 {
		return have
	}
	out := joined(maps.Clone(have), want)
	for _, name := range applied {
		if _, wanted := want[name]; !wanted {
			delete(out, name)
		}
	}
	if len(want) == 0 {
		delete(out, annotationApplied)
		return out
	}
	out[annotationApplied] = strings.Join(slices.Sorted(maps.Keys(want)), " ")
	return out
}

// joined is have with want over it; nil stays nil where nothing is wanted.
func joined(have, want map[string]string) map[string]string {
	if len(want) == 0 {
		return have
	}
	out := make(map[string]string, len(have)+len(want))
	maps.Copy(out, have)
	maps.Copy(out, want)
	return out
}

// requeueExpected maps errors that are no failures to a later try: another write came first, or something must go first. In a namespace
// that is being deleted nothing can be made, and nothing is tried again.
func requeueExpected(result ctrl.Result, err error) (ctrl.Result, error) {
	switch {
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: conflictPause}, nil
	case errors.Is(err, errGoing):
		return ctrl.Result{RequeueAfter: goingPause}, nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return ctrl.Result{}, nil
	}
	return result, err
}
