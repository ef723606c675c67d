// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// TestRuntimeSaysItAll checks TrainJobs that name nothing but a runtime whose step is the gate, and has the table, the IAM role, the image and
// the nodes of caches, whatever the runtime is called: they get the cache, and train in its zone, as the real scheduler decides.
func TestRuntimeSaysItAll(t *testing.T) {
	t.Parallel()
	const (
		role      = "arn:aws:iam::123456789012:role/lake-reader"
		itsImage  = "example.com/cacheserver:lake"
		zone      = "zone-b"
		cacheNode = "node-b"
	)
	for _, name := range []string{"lake-with-cache", "lake-data-cache", "lake"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := cluster.Namespace(t)
			headsFollowPods(t, ns)
			withGate(t, ns, name, func(step *corev1.PodSpec) {
				step.NodeSelector = map[string]string{corev1.LabelTopologyZone: zone}
				env := &step.Containers[0].Env
				*env = append(*env, variables("SCHEMA_NAME", "demo", "TABLE_NAME", "reviews", "METADATA_LOC", location, "IAM_ROLE", role, "CACHE_IMAGE", itsImage)...)
			})
			job := &trainer.TrainJob{
				ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "train"},
				Spec: trainer.TrainJobSpec{
					RuntimeRef: trainer.RuntimeRef{Kind: new(trainer.TrainingRuntimeKind), Name: name},
					Trainer:    &trainer.Trainer{NumNodes: new(int32(2))},
				},
			}
			cluster.Create(t, job)
			dc := cluster.DataCache(t, ns, "train", v1alpha1.StateReady)
			if dc.Spec.Arrow.Table != "demo.reviews" || *dc.Spec.Arrow.MetadataLocation != location {
				t.Errorf("the cache is of %s at %v, want the runtime's table", dc.Spec.Arrow.Table, dc.Spec.Arrow.MetadataLocation)
			}
			account := appears(t, &corev1.ServiceAccount{}, ns, wellknown.CacheName("train"))
			if got := account.Annotations["eks.amazonaws.com/role-arn"]; got != role {
				t.Errorf("the pods' account has the role %q, want the runtime's", got)
			}
			for _, pod := range podsWith(t, ns, 3, client.MatchingLabels{wellknown.LabelCache: "train"}) {
				if pod.Spec.Containers[0].Image != itsImage || pod.Spec.NodeName != cacheNode {
					t.Errorf("cache pod %s runs %s on %s, want %s on %s", pod.Name, pod.Spec.Containers[0].Image, pod.Spec.NodeName, itsImage, cacheNode)
				}
			}
			for _, pod := range podsWith(t, ns, 2, client.MatchingLabels{wellknown.LabelReplicatedJob: wellknown.NodeName}) {
				env := pod.Spec.Containers[0].Env
				if !slices.ContainsFunc(env, func(v corev1.EnvVar) bool { return v.Name == "TRAIN_JOB_NAME" }) {
					t.Errorf("training pod %s has no TRAIN_JOB_NAME: %v", pod.Name, env)
				}
				if pod.Spec.NodeName != cacheNode {
					t.Errorf("training pod %s is on %s, want it in the zone of the cache, on %s", pod.Name, pod.Spec.NodeName, cacheNode)
				}
			}
		})
	}
}

// withGate creates a runtime of the namespace like torch-distributed-with-cache, whose step is edited.
func withGate(t *testing.T, namespace, name string, edit func(step *corev1.PodSpec)) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "runtimes", "torch-distributed-with-cache.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	ours := &trainer.ClusterTrainingRuntime{}
	if err := yaml.UnmarshalStrict(text, ours); err != nil {
		t.Fatal(err)
	}
	edit(&ours.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec)
	cluster.Create(t, &trainer.TrainingRuntime{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: ours.Labels}, Spec: ours.Spec})
}

// podsWith waits for a number of pods that have a node.
func podsWith(t *testing.T, namespace string, count int, labels client.MatchingLabels) []corev1.Pod {
	t.Helper()
	var pods corev1.PodList
	kubetest.Eventually(t, fmt.Sprintf("%d pods with %v", count, labels), func() error {
		if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(namespace), labels); err != nil {
			return err
		}
		placed := slices.DeleteFunc(slices.Clone(pods.Items), func(p corev1.Pod) bool { return p.Spec.NodeName == "" })
		if len(placed) != count {
			return fmt.Errorf("%d of %d have a node", len(placed), len(pods.Items))
		}
		return nil
	})
	return pods.Items
}
