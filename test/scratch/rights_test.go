// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/internal/claim"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// rights checks that the manager's token only allows removing the gates of scratch volumes and creating claims.
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
	pod, open := barePod(ns, "pod"), barePod(ns, "open")
	open.Spec.Volumes, open.Spec.Containers[0].VolumeMounts = nil, nil // without our gate
	for _, p := range []*corev1.Pod{pod, open} {
		p.Labels, p.Annotations = map[string]string{"app": "train"}, map[string]string{"note": "mine"}
		p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/quota"}}
		cluster.Create(t, p)
	}
	patch := func(pod *corev1.Pod, kind types.PatchType, text string) error {
		return manager.Patch(t.Context(), pod.DeepCopy(), client.RawPatch(kind, []byte(text)), client.DryRunAll)
	}
	const image = `[{"op":"replace","path":"/spec/containers/0/image","value":"example.com/other"}]`
	kubetest.Eventually(t, "the policy to be in force", func() error {
		if err := patch(open, types.JSONPatchType, image); err == nil {
			return errors.New("the image may be changed")
		}
		return nil
	})

	const label, gate, meta, runs = "no label of a pod", "no gate but", "no metadata of a pod", "what a pod runs or where"
	denied := []struct{ what, patch, why string }{
		{"image", image, runs},
		{"toleration", `[{"op":"add","path":"/spec/tolerations/-","value":{"operator":"Exists"}}]`, runs},
		{"node selector", `[{"op":"add","path":"/spec/nodeSelector","value":{"kubernetes.io/hostname":"node-a"}}]`, runs},
		{"deadline", `[{"op":"add","path":"/spec/activeDeadlineSeconds","value":1}]`, runs},
		{"label", `[{"op":"add","path":"/metadata/labels/app","value":"other"}]`, label},
		{"new label", `[{"op":"add","path":"/metadata/labels/queue","value":"fast"}]`, label},
		{"label taken away", `[{"op":"remove","path":"/metadata/labels/app"}]`, label},
		{"our label", `[{"op":"add","path":"/metadata/labels/datacache.kubeflow.org~1claims","value":"waiting"}]`, label},
		{"annotation", `[{"op":"add","path":"/metadata/annotations/note","value":"theirs"}]`, meta},
		{"finalizer", `[{"op":"add","path":"/metadata/finalizers","value":["example.com/keep"]}]`, meta},
		{"owner", `[{"op":"add","path":"/metadata/ownerReferences","value":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"1"}]}]`, meta},
		{"another's gate", `[{"op":"remove","path":"/spec/schedulingGates/0"}]`, gate},
	}
	for _, tt := range denied {
		if err := patch(open, types.JSONPatchType, tt.patch); err == nil || !strings.Contains(err.Error(), tt.why) {
			t.Errorf("%s: %v, want it denied with %q", tt.what, err, tt.why)
		}
	}
	const ours = `{"op":"remove","path":"/metadata/labels/datacache.kubeflow.org~1claims"},`
	all := `[` + ours + `{"op":"remove","path":"/spec/schedulingGates"}]`
	if err := patch(pod, types.JSONPatchType, all); err == nil || !strings.Contains(err.Error(), gate) {
		t.Errorf("all gates: %v, want it denied with %q", err, gate)
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

	opening, err := claim.OpenPatch(pod)
	if err != nil {
		t.Fatal(err)
	}
	if err := patch(pod, types.StrategicMergePatchType, string(opening)); err != nil {
		t.Errorf("opening the gate: %v", err)
	}
	change := client.RawPatch(types.JSONPatchType, []byte(image))
	if err := cluster.Client.Patch(t.Context(), pod.DeepCopy(), change, client.DryRunAll); err != nil {
		t.Errorf("an admin changes the image: %v", err)
	}
}
