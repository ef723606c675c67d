// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/kubeflow/datacache/internal/claim"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

const scratchManager = "datacache-scratch-volumes" // and the name of its namespace

// scratchServices are the Services of each way to install scratch volumes.
var scratchServices = map[string][]string{
	"webhook":          {scratchManager, scratchManager + "-metrics"},
	"admission-policy": {scratchManager + "-metrics"},
}

// renderScratch returns the objects of scratch volumes, in their own namespace or in another.
func renderScratch(t *testing.T, folder, namespace string) []*unstructured.Unstructured {
	t.Helper()
	folder, err := filepath.Abs(filepath.Join("..", "..", "manifests", "scratch-volumes", folder))
	if err != nil {
		t.Fatal(err)
	}
	if namespace == scratchManager {
		return renderFolder(t, folder)
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if folder, err = filepath.Rel(dir, folder); err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]any{"namespace": namespace, "resources": []string{folder}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return renderFolder(t, dir)
}

// TestScratchVolumesManifests checks that the API server accepts every object of both ways to install scratch volumes, in their own
// namespace and in another, and that they are consistent.
func TestScratchVolumesManifests(t *testing.T) {
	t.Parallel()
	for folder, services := range scratchServices {
		for _, namespace := range []string{scratchManager, "kubeflow-system"} {
			t.Run(folder+"/"+namespace, func(t *testing.T) {
				t.Parallel()
				objects := renderScratch(t, folder, namespace)
				for _, object := range objects {
					if object.GetKind() == "Namespace" {
						continue // it would apply to the other objects of the dry run
					}
					if in := object.GetNamespace(); in == scratchManager {
						object = object.DeepCopy()
						object.SetNamespace(systemNamespace) // a namespace that exists
					}
					accept(t, object)
				}
				checkOrder(t, objects)
				checkImages(t, objects)
				checkRights(t, namespace, scratchManager, objects)
				checkManager(t, objects, scratchManager, services...)
			})
		}
	}
}

// TestScratchVolumesByPolicy checks that without a webhook the API server itself modifies pods with scratch volumes, or rejects them
// with the reason, and does not change other pods.
func TestScratchVolumesByPolicy(t *testing.T) {
	t.Parallel()
	ctx := context.WithoutCancel(t.Context())
	for _, object := range renderScratch(t, "admission-policy", scratchManager) {
		if !strings.HasPrefix(object.GetKind(), "MutatingAdmissionPolicy") && !strings.HasPrefix(object.GetName(), "refuse.") {
			continue
		}
		if err := cluster.Client.Apply(ctx, client.ApplyConfigurationFromUnstructured(object), client.FieldOwner("scratch"), client.ForceOwnership); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cluster.Client.Delete(ctx, object) }) // harmless for other tests, whose pods have no scratch volumes
	}
	ns := cluster.Namespace(t)
	dryRun := func(edit func(*corev1.Pod)) (*corev1.Pod, error) {
		pod := scratchPod(ns)
		edit(pod)
		return pod, cluster.Client.Create(t.Context(), pod, client.DryRunAll)
	}
	kubetest.Eventually(t, "the policy to hold", func() error {
		pod, err := dryRun(func(*corev1.Pod) {})
		if err == nil && !claim.Gated(pod) {
			err = errors.New("the pod is not gated")
		}
		return err
	})
	pod, err := dryRun(func(p *corev1.Pod) {
		p.Labels, p.Annotations = map[string]string{"a": "b"}, map[string]string{"c": "d"}
	})
	if err != nil {
		t.Fatal(err)
	}
	claims, err := claim.Wanted(pod)
	if err != nil || len(claims) != 1 || claims[0].Name != "scratch-pod-0" || *claims[0].Spec.StorageClassName != "fast" || pod.Labels["a"] != "b" || pod.Labels[claim.LabelState] != claim.StateWaiting {
		t.Errorf("claims %+v, %v; labels %v", claims, err, pod.Labels)
	}
	kubetest.Eventually(t, "the refusal to hold", func() error {
		_, err := dryRun(func(p *corev1.Pod) { p.Name, p.GenerateName = "", "web-" })
		if err == nil || !strings.Contains(err.Error(), `metadata.generateName: Invalid value: "web-"`) || !strings.Contains(err.Error(), "set completionMode: Indexed") {
			return fmt.Errorf("a pod without identity: %w", err)
		}
		return nil
	})
	if _, err := dryRun(func(p *corev1.Pod) {
		p.Spec.Volumes[0].Ephemeral.VolumeClaimTemplate.Annotations[claim.Mark] = "shared"
	}); err == nil || !strings.Contains(err.Error(), `spec.volumes[0].ephemeral.volumeClaimTemplate.metadata.annotations[datacache.kubeflow.org/claim]: Unsupported value: "shared"`) {
		t.Errorf("another value: %v", err)
	}
	ordinary, err := dryRun(func(p *corev1.Pod) { delete(p.Spec.Volumes[0].Ephemeral.VolumeClaimTemplate.Annotations, claim.Mark) })
	if err != nil || claim.Gated(ordinary) || slices.ContainsFunc(ordinary.Spec.Volumes, func(v corev1.Volume) bool { return v.PersistentVolumeClaim != nil }) {
		t.Errorf("an ordinary ephemeral volume: %v, %+v", err, ordinary.Spec.Volumes)
	}
}

func scratchPod(namespace string) *corev1.Pod {
	template := &corev1.PersistentVolumeClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{claim.Mark: claim.PerReplica}},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: new("fast"), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("100Gi")}},
		},
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "pod-0"},
		Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: "node", Image: image}},
			Volumes:    []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: template}}}},
		},
	}
}

// TestScratchVolumesExamples checks that the API server accepts the objects in docs/scratch-volumes.md, knows all their fields, and
// preserves the annotation.
func TestScratchVolumesExamples(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "scratch-volumes.md"))
	if err != nil {
		t.Fatal(err)
	}
	ns, found := cluster.Namespace(t), map[string]bool{}
	for block := range strings.SplitSeq(string(text), "```yaml\n") {
		block, _, _ = strings.Cut(block, "```")
		if !strings.HasPrefix(block, "apiVersion: ") {
			continue
		}
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal([]byte(block), &object.Object); err != nil {
			t.Fatal(err)
		}
		if object.GetKind() != trainer.ClusterTrainingRuntimeKind {
			object.SetNamespace(ns)
		}
		found[object.GetKind()] = true
		if err := cluster.Client.Create(t.Context(), object, &client.CreateOptions{DryRun: []string{metav1.DryRunAll}, Raw: &metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}}); err != nil {
			t.Errorf("%s: %v", object.GetKind(), err)
		}
		if kept, err := json.Marshal(object); err != nil || !strings.Contains(string(kept), claim.Mark) {
			t.Errorf("%s (%v) does not keep %s:\n%s", object.GetKind(), err, claim.Mark, kept)
		}
	}
	if want := []string{"ClusterTrainingRuntime", "Job", "JobSet", "LeaderWorkerSet"}; !slices.Equal(slices.Sorted(maps.Keys(found)), want) {
		t.Errorf("examples of %v, want %v", found, want)
	}
}
