// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package diagnose

import (
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// TestQueue checks what is said of a TrainJob that Kueue has suspended.
func TestQueue(t *testing.T) {
	t.Parallel()
	const waits = "WAITS TrainJob team/train: suspended: "
	for name, tt := range map[string]struct {
		pause, reserved, check string // of its Workload
		want                   string // the cause
	}{
		"no quota":           {reserved: "False", want: waits + "Kueue: as Kueue says"},
		"its cache loads":    {reserved: "True", check: "DataCache team/train: Loading", want: "WAITS DataCache team/train: Loading: Loading: as the cache says"},
		"its cache waits":    {reserved: "True", check: "DataCache team/train waits for quota", want: waits + "Kueue has reserved its quota, and waits; AdmissionCheck datacache: DataCache team/train waits for quota; fix: a larger quota"},
		"it gave quota back": {pause: "1 2026-01-01T10:20:30Z", reserved: "False", want: waits + "its cache got no quota, so that it gave its own back until 2026-01-01T10:20:30Z; fix: a larger quota"},
		"it may have quota":  {pause: "1", reserved: "False", want: waits + "Kueue: as Kueue says"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster, ok := holding(t, cache(v1alpha1.StateLoading, metav1.ConditionFalse, "Loading")).(client.Client)
			if !ok {
				t.Fatal("the cluster can't be written")
			}
			job := &trainer.TrainJob{}
			key := client.ObjectKey{Namespace: "team", Name: "train"}
			if err := cluster.Get(t.Context(), key, job); err != nil {
				t.Fatal(err)
			}
			job.Spec.Suspend = new(true)
			if err := cluster.Update(t.Context(), job); err != nil {
				t.Fatal(err)
			}
			status := map[string]any{"conditions": []any{map[string]any{"type": "QuotaReserved", "status": tt.reserved, "message": "as Kueue says"}}}
			if tt.check != "" {
				status["admissionChecks"] = []any{map[string]any{"name": "datacache", "state": "Pending", "message": tt.check}}
			}
			workload := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload", "status": status}}
			workload.SetNamespace("team")
			workload.SetName("trainjob-train")
			workload.SetOwnerReferences([]metav1.OwnerReference{{Kind: trainer.TrainJobKind, Name: "train", UID: job.UID, Controller: new(true)}})
			if tt.pause != "" {
				workload.Object["spec"] = map[string]any{"active": !strings.Contains(tt.pause, " ")}
				workload.SetAnnotations(map[string]string{wellknown.AnnotationPause: tt.pause})
			}
			if err := cluster.Create(t.Context(), workload); err != nil {
				t.Fatal(err)
			}
			findings, err := Why(t.Context(), cluster, nil, key)
			if err != nil {
				t.Fatal(err)
			}
			if cause := Cause(findings); cause == nil || !strings.HasPrefix("WAITS "+cause.String(), tt.want) {
				t.Errorf("the cause is %v, want %s", cause, tt.want)
			}
		})
	}
}
