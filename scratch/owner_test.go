// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// kinds is an in-memory reader of owners that returns one object or error per kind.
type kinds struct {
	client.Reader
	answers map[string]any
	asked   int
}

// Get returns the object or error of the kind.
func (k *kinds) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	k.asked++
	u, _ := object.(*unstructured.Unstructured)
	switch answer := k.answers[u.GetKind()].(type) {
	case error:
		return answer
	case *unstructured.Unstructured:
		answer.DeepCopyInto(u)
		return nil
	}
	return apierrors.NewNotFound(schema.GroupResource{Resource: u.GetKind()}, "x")
}

func ownedBy(kind string) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: "example.com/v1", Kind: kind, Name: "train", UID: types.UID(kind), Controller: new(true), BlockOwnerDeletion: new(true)}
}

// object returns an object of the kind whose controller is of another kind; "" means none.
func object(kind, controller string, edits ...func(*unstructured.Unstructured)) *unstructured.Unstructured {
	u := &unstructured.Unstructured{Object: map[string]any{}}
	u.SetUID(types.UID(kind))
	if controller != "" {
		u.SetOwnerReferences([]metav1.OwnerReference{ownedBy(controller)})
	}
	for _, edit := range edits {
		edit(u)
	}
	return u
}

func ended(condition, status string) func(*unstructured.Unstructured) {
	return func(u *unstructured.Unstructured) {
		u.Object["status"] = map[string]any{"conditions": []any{map[string]any{"type": condition, "status": status}}}
	}
}

func TestOwner(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "things"}, "train", errors.New("no rights"))
	unknown := &meta.NoKindMatchError{GroupKind: schema.GroupKind{Kind: "JobSet"}}
	tests := []struct {
		name    string
		answers map[string]any
		want    string // kind of the owner; "" if over
		over    bool
	}{
		{"TrainJob", map[string]any{"Job": object("Job", "JobSet"), "JobSet": object("JobSet", "TrainJob"), "TrainJob": object("TrainJob", "")}, "TrainJob", false},
		{"plain Job", map[string]any{"Job": object("Job", "")}, "Job", false},
		{"foreign kind above", map[string]any{"Job": object("Job", "Workflow"), "Workflow": forbidden}, "Workflow", false},
		{"foreign kind", map[string]any{"Job": forbidden}, "Job", false},
		{"kind that is not served", map[string]any{"Job": object("Job", "JobSet"), "JobSet": unknown}, "JobSet", false},
		{"gone", nil, "", true},
		{"gone above", map[string]any{"Job": object("Job", "JobSet")}, "", true},
		{"another of the name", map[string]any{"Job": object("Job of yesterday", "")}, "", true},
		{"being deleted", map[string]any{"Job": object("Job", "", func(u *unstructured.Unstructured) { u.SetDeletionTimestamp(new(metav1.Now())) })}, "", true},
		{"complete", map[string]any{"Job": object("Job", "", ended("Complete", "True"))}, "", true},
		{"failed above", map[string]any{"Job": object("Job", "JobSet"), "JobSet": object("JobSet", "", ended("Failed", "True"))}, "", true},
		{"not failed", map[string]any{"Job": object("Job", "", ended("Failed", "False"))}, "Job", false},
		{"conditions of another form", map[string]any{"Job": object("Job", "", func(u *unstructured.Unstructured) {
			u.Object["status"] = map[string]any{"conditions": "fine"}
		})}, "Job", false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reader := &kinds{answers: tt.answers}
			o := &owners{reader: reader}
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, OwnerReferences: []metav1.OwnerReference{ownedBy("Job")}}}
			for range 2 {
				owner, err := o.of(t.Context(), pod)
				if errors.Is(err, errOver) != tt.over || !tt.over && err != nil {
					t.Fatalf("error %v, want over %v", err, tt.over)
				}
				if tt.over {
					continue
				}
				want := ownedBy(tt.want)
				want.BlockOwnerDeletion = nil
				if diff := cmp.Diff(want, owner); diff != "" {
					t.Errorf("owner:\n%s", diff)
				}
			}
			if once := max(1, len(tt.answers)); reader.asked > once+1 {
				t.Errorf("%d requests for two pods of a job, want those of one climb", reader.asked)
			}
		})
	}
}

func TestOwnerErrorIsNotKept(t *testing.T) {
	reader := &kinds{answers: map[string]any{"Job": errors.New("connection refused")}}
	o := &owners{reader: reader}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{OwnerReferences: []metav1.OwnerReference{ownedBy("Job")}}}
	if _, err := o.of(t.Context(), pod); err == nil || errors.Is(err, errOver) {
		t.Fatalf("error %v, want the API server's", err)
	}
	reader.answers["Job"] = object("Job", "")
	if owner, err := o.of(t.Context(), pod); err != nil || owner.Kind != "Job" {
		t.Errorf("owner %v, %v", owner, err)
	}
}

func TestOwnerOfABarePod(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "shell", UID: "7"}}
	owner, err := (&owners{reader: &kinds{}}).of(t.Context(), pod)
	want := metav1.OwnerReference{APIVersion: "v1", Kind: "Pod", Name: "shell", UID: "7", Controller: new(true)}
	if diff := cmp.Diff(want, owner); diff != "" || err != nil {
		t.Errorf("%v\n%s", err, diff)
	}
}
