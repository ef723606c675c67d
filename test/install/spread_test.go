// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"strconv"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// TestManagersAreOnDifferentMachines has the scheduler and the Deployment controller place the pods of each manager on the two machines of the
// cluster, and replace them by rollouts: they must be on different machines each time. A second pod of the same Deployment that a rollout makes
// beside the others must not count.
func TestManagersAreOnDifferentMachines(t *testing.T) {
	const rounds = 10
	for name, folder := range map[string]string{"datacache-manager": overlay, "datacache-scratch-volumes": "manifests/scratch-volumes/webhook"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := cluster.Namespace(t)
			deployment := &appsv1.Deployment{}
			for _, fields := range objectsOf(t, readFile(t, rendered(t, repository, folder))) {
				if o := (unstructured.Unstructured{Object: fields}); o.GetKind() == "Deployment" && o.GetName() == name {
					if err := runtime.DefaultUnstructuredConverter.FromUnstructured(fields, deployment); err != nil {
						t.Fatal(err)
					}
				}
			}
			deployment.Namespace = ns
			pod := &deployment.Spec.Template.Spec
			pod.ServiceAccountName, pod.PriorityClassName = "default", "" // those of the manifest are not installed
			cluster.Create(t, deployment)
			for round := range rounds {
				rolledOut(t, deployment)
				places := map[string]string{}
				var pods corev1.PodList
				if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(ns)); err != nil {
					t.Fatal(err)
				}
				for i := range pods.Items {
					if p := &pods.Items[i]; p.DeletionTimestamp == nil {
						if other := places[p.Spec.NodeName]; other != "" {
							t.Fatalf("after %d rollouts %s and %s are both on %s", round, p.Name, other, p.Spec.NodeName)
						}
						places[p.Spec.NodeName] = p.Name
					}
				}
				if len(places) != 2 {
					t.Fatalf("after %d rollouts the pods are %v, want two", round, places)
				}
				patch := fmt.Sprintf(`{"spec":{"template":{"metadata":{"annotations":{"round":%q}}}}}`, strconv.Itoa(round))
				if err := cluster.Client.Patch(t.Context(), deployment, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}

// rolledOut waits until all pods of the Deployment have its template.
func rolledOut(t *testing.T, d *appsv1.Deployment) {
	t.Helper()
	kubetest.Eventually(t, d.Name+" to be rolled out", func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(d), d); err != nil {
			return err
		}
		if s := d.Status; s.ObservedGeneration < d.Generation || s.Replicas != *d.Spec.Replicas || s.UpdatedReplicas != s.Replicas || s.AvailableReplicas != s.Replicas {
			return fmt.Errorf("generation %d, status %+v", d.Generation, s)
		}
		return nil
	})
}
