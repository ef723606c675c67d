// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// errOver says that one of a pod's controllers is gone, being deleted, or finished, so that the pod needs no claim any more.
var errOver = errors.New("the job is over")

const (
	ownerLifetime = 30 * time.Second // how long a pod's controllers are cached for other pods of the same job
	maxOwners     = 10_000
	maxClimb      = 10 // TrainJob, JobSet, Job are 3; TrainJob, LeaderWorkerSet, StatefulSet, leader pod, StatefulSet are 5
)

// owners finds the owner for the claims of a pod. It is not safe for concurrent use.
type owners struct {
	reader client.Reader // reads from the API server, not from an informer
	known  map[types.UID]resolved
}

type resolved struct {
	owner metav1.OwnerReference
	err   error // nil or errOver
	at    time.Time
}

// of follows a pod's controllers up to the one that has no controller. It stops below a kind that we may not read, or that the API
// server does not serve. A pod without controller owns its claims itself. The reference is a controller's and does not block
// deletion.
func (o *owners) of(ctx context.Context, pod *corev1.Pod) (metav1.OwnerReference, error) {
	first := metav1.GetControllerOf(pod)
	if first == nil {
		return *controller(metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID}), nil
	}
	if r, ok := o.known[first.UID]; ok && time.Since(r.at) < ownerLifetime {
		return r.owner, r.err
	}
	owner, err := o.climb(ctx, pod.Namespace, *first)
	if err != nil && !errors.Is(err, errOver) {
		return owner, err
	}
	if o.known == nil || len(o.known) >= maxOwners {
		o.known = map[types.UID]resolved{}
	}
	o.known[first.UID] = resolved{owner, err, time.Now()}
	return owner, err
}

func (o *owners) climb(ctx context.Context, namespace string, ref metav1.OwnerReference) (metav1.OwnerReference, error) {
	for range maxClimb {
		object := &unstructured.Unstructured{}
		object.SetAPIVersion(ref.APIVersion)
		object.SetKind(ref.Kind)
		err := o.reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: ref.Name}, object)
		switch {
		case apierrors.IsForbidden(err), meta.IsNoMatchError(err):
			return *controller(ref), nil
		case apierrors.IsNotFound(err):
			return ref, errOver
		case err != nil:
			return ref, fmt.Errorf("get the owner %s %s/%s: %w", ref.Kind, namespace, ref.Name, err)
		case object.GetUID() != ref.UID, object.GetDeletionTimestamp() != nil, finished(object):
			return ref, errOver
		}
		next := metav1.GetControllerOf(object)
		if next == nil {
			return *controller(ref), nil
		}
		ref = *next
	}
	return ref, fmt.Errorf("%s %s/%s has a controller above %d others", ref.Kind, namespace, ref.Name, maxClimb)
}

func controller(ref metav1.OwnerReference) *metav1.OwnerReference {
	ref.Controller, ref.BlockOwnerDeletion = new(true), nil
	return &ref
}

// finished reports whether a Job, JobSet or TrainJob has finished. Other kinds don't finish.
func finished(object *unstructured.Unstructured) bool {
	conditions, _, err := unstructured.NestedSlice(object.Object, "status", "conditions")
	if err != nil {
		return false // a kind with another format of conditions
	}
	for _, c := range conditions {
		condition, _ := c.(map[string]any)
		switch condition["type"] {
		case "Complete", "Completed", "Failed":
			if condition["status"] == "True" {
				return true
			}
		}
	}
	return false
}
