// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kube applies the objects that the controller makes, and has their labels, names and owners.
package kube

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

// ForeignError says that an object with the name that we need belongs to somebody else. It is never adopted, changed or deleted,
// since it may be in use.
type ForeignError struct{ Kind, Name, Owner string }

func (e *ForeignError) Error() string {
	return fmt.Sprintf("%s %s exists and belongs to %s: delete or rename it, or choose another name", e.Kind, e.Name, e.Owner)
}

// ErrGoing says that an object of the previous owner with the same name still exists; the garbage collector will delete it.
var ErrGoing = errors.New("the object of an earlier owner of the same name still goes")

const (
	// ConflictPause is how long a reconciliation waits after a conflict.
	ConflictPause = 200 * time.Millisecond // gives the informers time to see the other write
	goingPause    = 2 * time.Second        // gives the garbage collector time
)

// Applier creates and updates objects. Objects are created, then patched with their resourceVersion. Server-side apply is not used:
// it can't be restricted to creation, and would merge into an object of somebody else.
type Applier struct {
	Client client.Client // reads from informers, which only contain objects with LabelManagedBy
	Live   client.Reader // reads from the API server
}

// Apply creates the object, or patches the fields that we set if they differ. It returns the object as it is now, or a *ForeignError.
func Apply[T client.Object](ctx context.Context, k Applier, want T) (T, error) {
	have := want.DeepCopyObject().(T) // DeepCopyObject returns the same type
	key := client.ObjectKeyFromObject(want)
	err := k.Client.Get(ctx, key, have)
	if apierrors.IsNotFound(err) {
		return create(ctx, k, want)
	}
	if err != nil {
		return have, k.Failed("get", want, err)
	}
	if err := Foreign(k.Kind(want), have, want); err != nil {
		return have, err
	}
	if have.GetDeletionTimestamp() != nil {
		return have, nil // we are reconciled again when it is gone
	}
	next := have.DeepCopyObject().(T) // DeepCopyObject returns the same type
	MergeDesired(next, want)
	if equality.Semantic.DeepEqual(have, next) {
		return have, nil
	}
	if err := k.Client.Patch(ctx, next, client.MergeFromWithOptions(have, client.MergeFromWithOptimisticLock{})); err != nil {
		return have, k.Failed("patch", want, err)
	}
	return next, nil
}

// create handles an object that the informers don't contain: it does not exist, was created a moment ago, or is not ours.
func create[T client.Object](ctx context.Context, k Applier, want T) (T, error) {
	made := want.DeepCopyObject().(T) // DeepCopyObject returns the same type
	made.SetAnnotations(MergeAnnotations(nil, want.GetAnnotations()))
	err := k.Client.Create(ctx, made)
	if err == nil {
		return made, nil
	}
	if !apierrors.IsAlreadyExists(err) {
		return made, k.Failed("create", want, err)
	}
	have := want.DeepCopyObject().(T) // DeepCopyObject returns the same type
	if err := k.Live.Get(ctx, client.ObjectKeyFromObject(want), have); err != nil {
		return have, k.Failed("get", want, err)
	}
	return have, Foreign(k.Kind(want), have, want)
}

// Foreign returns nil if the object has the same controller as the wanted one, ErrGoing if its controller is an earlier object of the
// same name, and otherwise a *ForeignError.
func Foreign(kind string, have, want client.Object) error {
	is, wanted := metav1.GetControllerOf(have), metav1.GetControllerOf(want)
	if is != nil && is.UID == wanted.UID {
		return nil
	}
	owner := "nobody that datacache knows"
	if is != nil && is.Kind == wanted.Kind && is.Name == wanted.Name {
		return fmt.Errorf("%s %s: %w", kind, Qualified(have), ErrGoing)
	}
	if is != nil {
		owner = is.Kind + " " + is.Name
	}
	return &ForeignError{Kind: kind, Name: Qualified(have), Owner: owner}
}

// Failed returns the error of an operation on an object.
func (k Applier) Failed(verb string, object client.Object, err error) error {
	return fmt.Errorf("%s %s %s: %w", verb, k.Kind(object), Qualified(object), err)
}

// Kind is the object's kind in the client's scheme, or its Go type.
func (k Applier) Kind(object runtime.Object) string {
	gvk, err := apiutil.GVKForObject(object, k.Client.Scheme())
	if err != nil {
		return fmt.Sprintf("%T", object)
	}
	return gvk.Kind
}

// MergeDesired sets in an existing object the fields that we manage and leaves the rest: defaults, and what others added. A
// LeaderWorkerSet keeps its template, since a change would discard the rows in its pods, unless the DataCache's spec changes its
// pods: then the LeaderWorkerSet controller replaces copy after copy.
func MergeDesired(have, want client.Object) {
	if set, ok := have.(*lws.LeaderWorkerSet); ok {
		mergeLeaderWorkerSet(set, want.(*lws.LeaderWorkerSet)) // both are of the same type
	}
	have.SetLabels(Joined(have.GetLabels(), want.GetLabels()))
	have.SetAnnotations(MergeAnnotations(have.GetAnnotations(), want.GetAnnotations()))
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

// mergeLeaderWorkerSet must be called before the annotations are merged, since they record the pod settings of the existing template.
// The group size is immutable.
func mergeLeaderWorkerSet(have, want *lws.LeaderWorkerSet) {
	have.Spec.Replicas = want.Spec.Replicas
	if ReplacesTemplate(have, want) {
		have.Spec.LeaderWorkerTemplate.LeaderTemplate = want.Spec.LeaderWorkerTemplate.LeaderTemplate
		have.Spec.LeaderWorkerTemplate.WorkerTemplate = want.Spec.LeaderWorkerTemplate.WorkerTemplate
	}
}

// ReplacesTemplate reports whether an existing LeaderWorkerSet gets the template of the wanted one, and so other pods.
func ReplacesTemplate(have, want *lws.LeaderWorkerSet) bool {
	madeBy, ok := have.Annotations[AnnotationPodSettings]
	return ok && madeBy != want.Annotations[AnnotationPodSettings]
}

// MergeAnnotations returns have overridden by want, without annotations that we wrote before and no longer want. An annotation lists
// the ones we wrote.
func MergeAnnotations(have, want map[string]string) map[string]string {
	applied := strings.Fields(have[AnnotationApplied])
	if len(want) == 0 && len(applied) == 0 {
		return have
	}
	out := Joined(maps.Clone(have), want)
	for _, name := range applied {
		if _, wanted := want[name]; !wanted {
			delete(out, name)
		}
	}
	if len(want) == 0 {
		delete(out, AnnotationApplied)
		return out
	}
	out[AnnotationApplied] = strings.Join(slices.Sorted(maps.Keys(want)), " ")
	return out
}

// Joined returns have overridden by want; if want is empty, a nil map stays nil.
func Joined(have, want map[string]string) map[string]string {
	if len(want) == 0 {
		return have
	}
	out := make(map[string]string, len(have)+len(want))
	maps.Copy(out, have)
	maps.Copy(out, want)
	return out
}

// RequeueExpected maps expected errors to a later retry: conflicts, and objects that must be deleted first. In a namespace that is
// being deleted nothing can be created, so there is no retry.
func RequeueExpected(result ctrl.Result, err error) (ctrl.Result, error) {
	switch {
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: ConflictPause}, nil
	case errors.Is(err, ErrGoing):
		return ctrl.Result{RequeueAfter: goingPause}, nil
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return ctrl.Result{}, nil
	}
	return result, err
}
