// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package claim says, without a cluster, which PersistentVolumeClaims a pod with scratch volumes needs and how the pod refers to them.
//
// A scratch volume is an ephemeral volume whose claim template carries the annotation Mark. Mutate, at admission, turns it into a
// reference to the claim of the pod's replica and adds the scheduling gate Gate. Wanted says which claims such a pod waits for, Judge
// whether a claim of that name is the one, and OpenPatch is the patch that lets the scheduler have the pod.
//
// All functions are pure and safe for concurrent use as long as nobody writes to their arguments meanwhile.
package claim

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const group = "datacache.kubeflow.org"

const (
	// Mark is the annotation of spec.volumes[].ephemeral.volumeClaimTemplate that makes the volume a scratch volume.
	Mark = group + "/claim"
	// PerReplica is the only value of Mark: every replica has a claim of its own.
	PerReplica = "per-replica"
	// Gate is the scheduling gate of pods whose claims do not exist yet.
	Gate = group + "/claims"
	// LabelState on a pod is StateWaiting as long as the pod has Gate. The controller watches such pods only.
	LabelState = group + "/claims"
	// StateWaiting is the only value of LabelState.
	StateWaiting = "waiting"
	// LabelVolume on a claim is the name of its volume.
	LabelVolume = group + "/volume"
	// AnnotationReplica on a claim is the replica whose disk it is.
	AnnotationReplica = group + "/replica"

	templatePrefix = "claim." + group + "/"
)

// TemplateAnnotation is the annotation of a pod that keeps the claim template of a volume, as JSON.
func TemplateAnnotation(volume string) string { return templatePrefix + volume }

// Name is the name of a replica's claim for a volume.
func Name(volume, replica string) string { return volume + "-" + replica }

// Marked is the value of Mark in a volume's claim template; false where the volume has no such mark.
func Marked(v *corev1.Volume) (value string, marked bool) {
	if v.Ephemeral == nil || v.Ephemeral.VolumeClaimTemplate == nil {
		return "", false
	}
	value, marked = v.Ephemeral.VolumeClaimTemplate.Annotations[Mark]
	return value, marked
}

// Replica is the identity that a pod shares with the pods that replace it: the hostname "<job>-<index>" where an indexed Job controls the
// pod, its own name elsewhere. It is empty for a pod whose name the API server generates.
func Replica(pod *corev1.Pod) string {
	if owner := metav1.GetControllerOf(pod); owner != nil && owner.Kind == "Job" && owner.APIVersion == batchv1.SchemeGroupVersion.String() {
		if _, indexed := pod.Annotations[batchv1.JobCompletionIndexAnnotation]; !indexed {
			return ""
		}
		return pod.Spec.Hostname
	}
	if pod.Name == "" {
		return ""
	}
	return pod.Name
}

// Gated says whether a pod waits for its claims.
func Gated(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == Gate })
}

// Wanted are the claims that a gated pod waits for, without owner, in the order of its volumes. An error says which annotation of the pod
// contradicts its volumes or can't be read.
func Wanted(pod *corev1.Pod) ([]*corev1.PersistentVolumeClaim, error) {
	replica := Replica(pod)
	var claims []*corev1.PersistentVolumeClaim
	for i := range pod.Spec.Volumes {
		v := &pod.Spec.Volumes[i]
		kept, ok := pod.Annotations[TemplateAnnotation(v.Name)]
		if !ok || v.PersistentVolumeClaim == nil {
			continue
		}
		if want := Name(v.Name, replica); replica == "" || v.PersistentVolumeClaim.ClaimName != want {
			return nil, fmt.Errorf("volume %s refers to claim %q, want %q: its reference or the pod's hostname was changed after admission",
				v.Name, v.PersistentVolumeClaim.ClaimName, want)
		}
		var template corev1.PersistentVolumeClaimTemplate
		if err := json.Unmarshal([]byte(kept), &template); err != nil {
			return nil, fmt.Errorf("annotation %s is not a claim template: %w", TemplateAnnotation(v.Name), err)
		}
		claims = append(claims, newClaim(pod.Namespace, v.Name, replica, &template))
	}
	return claims, nil
}

func newClaim(namespace, volume, replica string, template *corev1.PersistentVolumeClaimTemplate) *corev1.PersistentVolumeClaim {
	c := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   namespace,
			Name:        Name(volume, replica),
			Labels:      maps.Clone(template.Labels),
			Annotations: maps.Clone(template.Annotations),
		},
		Spec: template.Spec,
	}
	metav1.SetMetaDataLabel(&c.ObjectMeta, LabelVolume, volume)
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, AnnotationReplica, replica)
	return c
}

// OpenPatch is the strategic merge patch that takes Gate and LabelState from a pod in one request. It fails with a conflict where another
// pod has the name by now.
func OpenPatch(pod *corev1.Pod) ([]byte, error) {
	return json.Marshal(map[string]any{
		"metadata": map[string]any{"uid": pod.UID, "labels": map[string]any{LabelState: nil}},
		"spec":     map[string]any{"schedulingGates": []map[string]any{{"$patch": "delete", "name": Gate}}},
	})
}
