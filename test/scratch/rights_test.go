// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"context"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/internal/claim"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// rights: who has the manager's token can open the gates of scratch volumes and make claims, and change nothing else.
func rights(t *testing.T) {
	ns := disks(t, 0)
	config, err := cluster.ConfigFor(account, groups...)
	if err != nil {
		t.Fatal(err)
	}
	manager, err := client.New(config, client.Options{Scheme: cluster.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	theirs := &corev1.PersistentVolumeClaim{}
	theirs.Namespace, theirs.Name, theirs.Spec = ns, "scratch-pod", scratchVolume(ns).Ephemeral.VolumeClaimTemplate.Spec
	cluster.Create(t, theirs) // so that the pod stays gated
	pod := barePod(ns, "pod")
	pod.Labels = map[string]string{"app": "train"}
	pod.Finalizers = []string{"example.com/keep"}
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/quota"}}
	cluster.Create(t, pod)
	ctx := context.WithoutCancel(t.Context()) // which is over when cleanup starts
	t.Cleanup(func() {                        // the namespace goes only without the finalizer
		patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
		if err := cluster.Client.Patch(ctx, pod, patch); err != nil {
			t.Error(err)
		}
	})
	patch := func(kind types.PatchType, text string) error {
		return manager.Patch(t.Context(), pod.DeepCopy(), client.RawPatch(kind, []byte(text)), client.DryRunAll)
	}
	const image = `[{"op":"replace","path":"/spec/containers/0/image","value":"example.com/other"}]`
	kubetest.Eventually(t, "the policy to be in force", func() error {
		if err := patch(types.JSONPatchType, image); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
			return fmt.Errorf("a change of the image got %w", err)
		}
		return nil
	})

	for what, text := range map[string]string{
		"image":                  image,
		"label":                  `[{"op":"add","path":"/metadata/labels/app","value":"other"}]`,
		"new label":              `[{"op":"add","path":"/metadata/labels/queue","value":"fast"}]`,
		"other label taken away": `[{"op":"remove","path":"/metadata/labels/app"}]`,
		"annotation":             `[{"op":"add","path":"/metadata/annotations/x","value":"y"}]`,
		"finalizer":              `[{"op":"remove","path":"/metadata/finalizers"}]`,
		"owner":                  `[{"op":"add","path":"/metadata/ownerReferences","value":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"1"}]}]`,
		"another's gate":         `[{"op":"replace","path":"/spec/schedulingGates","value":[]}]`,
		"another's gate alone":   `[{"op":"replace","path":"/spec/schedulingGates","value":[{"name":"datacache.kubeflow.org/claims"}]}]`,
		"toleration":             `[{"op":"add","path":"/spec/tolerations/-","value":{"operator":"Exists"}}]`,
		"node selector":          `[{"op":"add","path":"/spec/nodeSelector","value":{"kubernetes.io/hostname":"node-a"}}]`,
		"deadline":               `[{"op":"add","path":"/spec/activeDeadlineSeconds","value":1}]`,
	} {
		if err := patch(types.JSONPatchType, text); err == nil || !strings.Contains(err.Error(), "datacache-scratch-volumes may") {
			t.Errorf("%s: %v, want it denied by the policy", what, err)
		}
	}
	forbidden := map[string]error{
		"delete the pod":   manager.Delete(t.Context(), pod.DeepCopy(), client.DryRunAll),
		"create a pod":     manager.Create(t.Context(), barePod(ns, "other"), client.DryRunAll),
		"update the pod":   manager.Update(t.Context(), pod.DeepCopy(), client.DryRunAll),
		"status":           manager.Status().Patch(t.Context(), pod.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"status":{"phase":"Failed"}}`)), client.DryRunAll),
		"bind the pod":     manager.SubResource("binding").Create(t.Context(), pod.DeepCopy(), &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "node-a"}}, client.DryRunAll),
		"delete a claim":   manager.Delete(t.Context(), theirs.DeepCopy(), client.DryRunAll),
		"change a claim":   manager.Patch(t.Context(), theirs.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"a":"b"}}}`)), client.DryRunAll),
		"read Secrets":     manager.List(t.Context(), &corev1.SecretList{}, client.InNamespace(ns)),
		"read ConfigMaps":  manager.List(t.Context(), &corev1.ConfigMapList{}, client.InNamespace(ns)),
		"delete a volume":  manager.Delete(t.Context(), &corev1.PersistentVolume{ObjectMeta: theirs.ObjectMeta}, client.DryRunAll),
		"delete namespace": manager.Delete(t.Context(), &corev1.Namespace{ObjectMeta: theirs.ObjectMeta}, client.DryRunAll),
	}
	for what, err := range forbidden {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want it forbidden", what, err)
		}
	}

	open, err := claim.OpenPatch(pod)
	if err != nil {
		t.Fatal(err)
	}
	if err := patch(types.StrategicMergePatchType, string(open)); err != nil {
		t.Errorf("opening the gate: %v", err)
	}
	change := client.RawPatch(types.JSONPatchType, []byte(image))
	if err := cluster.Client.Patch(t.Context(), pod.DeepCopy(), change, client.DryRunAll); err != nil {
		t.Errorf("an admin changes the image: %v", err)
	}
}
