// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package queue reads Kueue's Workloads and writes the state of datacache's AdmissionCheck.
package queue

import (
	"context"
	"fmt"
	"slices"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

const (
	// CheckName is the name of the AdmissionCheck by which a ClusterQueue lets TrainJobs wait for their caches.
	CheckName = "datacache"
	// checkController is the spec.controllerName of that AdmissionCheck.
	checkController = "datacache.kubeflow.org/cache"
)

// States of an AdmissionCheck of a Workload.
const (
	pending = "Pending"
	ready   = "Ready"
)

// Conditions of a Workload (kueue v0.17 apis/kueue/v1beta2).
const (
	quotaReserved = "QuotaReserved"
	admitted      = "Admitted"
	evicted       = "Evicted"
)

// indexOwner is the informer's index of Workloads by the kind and name of the objects that own them.
const indexOwner = "owner"

// NewWorkload returns an empty Workload.
func NewWorkload() *unstructured.Unstructured { return ofKind("Workload") }

// NewCheck returns an empty AdmissionCheck.
func NewCheck() *unstructured.Unstructured { return ofKind("AdmissionCheck") }

func ofKind(kind string) *unstructured.Unstructured {
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(schema.GroupVersionKind{Group: "kueue.x-k8s.io", Version: "v1beta2", Kind: kind})
	return object
}

// Workload is the part of a Workload that caches depend on.
type Workload struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		Active *bool `json:"active,omitempty"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions,omitempty"`
		Checks     []Check            `json:"admissionChecks,omitempty"`
	} `json:"status"`
}

// Check is the state of an AdmissionCheck of a Workload.
type Check struct {
	Name    string      `json:"name"`
	State   string      `json:"state"`
	Since   metav1.Time `json:"lastTransitionTime"`
	Message string      `json:"message"`
	Requeue *int32      `json:"requeueAfterSeconds,omitempty"`
	Retries *int32      `json:"retryCount,omitempty"`
	Updates []any       `json:"podSetUpdates,omitempty"`
}

// check returns datacache's AdmissionCheck of the Workload; nil if its ClusterQueue has none.
func (w *Workload) check() *Check {
	if i := slices.IndexFunc(w.Status.Checks, func(c Check) bool { return c.Name == CheckName }); i >= 0 {
		return &w.Status.Checks[i]
	}
	return nil
}

// hasQuota reports whether quota is reserved for the Workload, which it still is for a moment after an eviction.
func (w *Workload) hasQuota() bool {
	return meta.IsStatusConditionTrue(w.Status.Conditions, quotaReserved) && !meta.IsStatusConditionTrue(w.Status.Conditions, evicted)
}

// waitsSince returns since when a Workload has not been admitted; the zero time if it is.
func (w *Workload) waitsSince() time.Time {
	c := meta.FindStatusCondition(w.Status.Conditions, admitted)
	switch {
	case c == nil:
		return w.CreationTimestamp.Time
	case c.Status == metav1.ConditionTrue:
		return time.Time{}
	}
	return c.LastTransitionTime.Time
}

// read reads a Workload.
func read(object *unstructured.Unstructured) (*Workload, error) {
	w := &Workload{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, w); err != nil {
		return nil, fmt.Errorf("read Workload %s: %w", client.ObjectKeyFromObject(object), err)
	}
	return w, nil
}

// Queues reads Workloads. A nil *Queues is valid: no TrainJob waits in a queue for its cache. It is safe for concurrent use.
type Queues struct{ Reader client.Reader } // of informers

// AddIndex adds the index that Queues needs. It fails where Kueue is not installed.
func AddIndex(ctx context.Context, indexer client.FieldIndexer) error {
	err := indexer.IndexField(ctx, NewWorkload(), indexOwner, func(object client.Object) []string {
		var owners []string
		for _, owner := range object.GetOwnerReferences() {
			owners = append(owners, owner.Kind+"/"+owner.Name)
		}
		return owners
	})
	if err != nil {
		return fmt.Errorf("index Workloads of Kueue: %w", err)
	}
	return nil
}

// of returns the Workloads that an object owns.
func (q *Queues) of(ctx context.Context, kind string, key types.NamespacedName) ([]*Workload, error) {
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(NewWorkload().GroupVersionKind())
	if err := q.Reader.List(ctx, list, client.InNamespace(key.Namespace), client.MatchingFields{indexOwner: kind + "/" + key.Name}); err != nil {
		return nil, fmt.Errorf("list the Workloads of %s %s: %w", kind, key, err)
	}
	var found []*Workload
	for i := range list.Items {
		w, err := read(&list.Items[i])
		if err != nil {
			return nil, err
		}
		found = append(found, w)
	}
	return found, nil
}

// Place is where a suspended TrainJob stands in a queue whose Workloads wait for their caches.
type Place int

// Places of a TrainJob.
const (
	Nowhere  Place = iota // it is in no such queue
	Waiting               // it waits for quota
	Reserved              // its quota is reserved, and its cache must load
)

// PlaceOf returns the place of a suspended TrainJob.
func (q *Queues) PlaceOf(ctx context.Context, job *trainer.TrainJob) (Place, error) {
	if q == nil {
		return Nowhere, nil
	}
	made, err := q.of(ctx, trainer.TrainJobKind, client.ObjectKeyFromObject(job))
	if err != nil {
		return Nowhere, err
	}
	place := Nowhere
	for _, w := range made {
		check := w.check()
		switch {
		case check == nil || !metav1.IsControlledBy(w, job):
		case w.hasQuota() && (check.State == pending || check.State == ready):
			return Reserved, nil
		default:
			place = Waiting
		}
	}
	return place, nil
}

// WaitsSince returns since when the pods of a LeaderWorkerSet wait for quota; the zero time if they don't, or Kueue does not manage them.
func (q *Queues) WaitsSince(ctx context.Context, set types.NamespacedName) (time.Time, error) {
	made, err := q.of(ctx, "LeaderWorkerSet", set)
	if err != nil {
		return time.Time{}, err
	}
	latest := time.Time{}
	for _, w := range made {
		if since := w.waitsSince(); since.After(latest) {
			latest = since
		}
	}
	return latest, nil
}
