// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package claim

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Mutate edits a new pod in place: each scratch volume becomes a reference to its replica's claim, and the pod gets Gate and
// LabelState. A pod without scratch volumes is unchanged, and so is one that Mutate edited before. If it returns errors, the pod is
// unchanged and must be rejected.
func Mutate(pod *corev1.Pod) field.ErrorList {
	var marked []int
	for i := range pod.Spec.Volumes {
		if _, ok := Marked(&pod.Spec.Volumes[i]); ok {
			marked = append(marked, i)
		}
	}
	if len(marked) == 0 {
		return nil
	}
	replica := Replica(pod)
	errs := refusePod(pod, replica)
	templates := make([]string, len(marked))
	for n, i := range marked {
		errs = append(errs, refuseVolume(&pod.Spec.Volumes[i], volumePath(i), replica)...)
		kept, err := json.Marshal(pod.Spec.Volumes[i].Ephemeral.VolumeClaimTemplate)
		if err != nil {
			errs = append(errs, field.InternalError(volumePath(i), err))
		}
		templates[n] = string(kept)
	}
	if len(errs) > 0 {
		return errs
	}
	for n, i := range marked {
		v := &pod.Spec.Volumes[i]
		metav1.SetMetaDataAnnotation(&pod.ObjectMeta, TemplateAnnotation(v.Name), templates[n])
		v.VolumeSource = corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: Name(v.Name, replica)}}
	}
	metav1.SetMetaDataLabel(&pod.ObjectMeta, LabelState, StateWaiting)
	if !Gated(pod) {
		pod.Spec.SchedulingGates = append(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: Gate})
	}
	return nil
}

func volumePath(i int) *field.Path { return field.NewPath("spec", "volumes").Index(i) }

func refusePod(pod *corev1.Pod, replica string) field.ErrorList {
	var errs field.ErrorList
	if replica == "" {
		errs = append(errs, field.Invalid(field.NewPath("metadata", "generateName"), pod.GenerateName, fmt.Sprintf(
			"a pod with a scratch volume (annotation %s) must have a lasting identity, and this one's name is generated: set completionMode: Indexed in its Job, or take the annotation away", Mark)))
	}
	if pod.Spec.NodeName != "" {
		errs = append(errs, field.Invalid(field.NewPath("spec", "nodeName"), pod.Spec.NodeName,
			"a pod with a scratch volume must be placed by the scheduler, after its claims are made: use nodeSelector in place of nodeName"))
	}
	return errs
}

func refuseVolume(v *corev1.Volume, at *field.Path, replica string) field.ErrorList {
	value, _ := Marked(v)
	if value != PerReplica {
		at := at.Child("ephemeral", "volumeClaimTemplate", "metadata", "annotations").Key(Mark)
		return field.ErrorList{field.NotSupported(at, value, []string{PerReplica})}
	}
	name := Name(v.Name, replica)
	if len(name) > validation.DNS1123SubdomainMaxLength {
		return field.ErrorList{field.Invalid(at.Child("name"), v.Name, fmt.Sprintf(
			"the claim %s would have a name of %d characters, at most %d are allowed: shorten the volume's or the pod's name", name, len(name), validation.DNS1123SubdomainMaxLength))}
	}
	return nil
}
