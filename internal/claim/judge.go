// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// State classifies an existing claim with the name that a pod wants.
type State int

const (
	// Ours is a claim that is the one that the pod wants.
	Ours State = iota
	// Ending is a claim that is being deleted; the wanted one can be created when it is gone.
	Ending
	// Taken is a claim of somebody else, or of another volume or replica of the same job.
	Taken
)

// Judge compares an existing claim with the wanted one, whose owner is given. For Ending and Taken, why describes the existing claim.
func Judge(existing, wanted *corev1.PersistentVolumeClaim, owner metav1.OwnerReference) (state State, why string) {
	if existing.DeletionTimestamp != nil {
		return Ending, "it is being deleted"
	}
	has := metav1.GetControllerOf(existing)
	switch {
	case has == nil:
		return Taken, "it has no controller"
	case has.UID != owner.UID && has.Kind == owner.Kind && has.Name == owner.Name:
		return Ending, fmt.Sprintf("it belongs to an earlier %s of this name and goes with it", has.Kind)
	case has.UID != owner.UID:
		return Taken, fmt.Sprintf("it belongs to %s %s", has.Kind, has.Name)
	}
	volume, replica := existing.Labels[LabelVolume], existing.Annotations[AnnotationReplica]
	if volume != wanted.Labels[LabelVolume] || replica != wanted.Annotations[AnnotationReplica] {
		return Taken, fmt.Sprintf("it is the claim of volume %q of replica %q", volume, replica)
	}
	return Ours, ""
}
