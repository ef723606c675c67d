// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"path"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

const (
	spillVolume = "spill"
	spillMount  = "/var/lib/datacache/spill"
	// imageGroup is the group of the server's image.
	imageGroup = 65532
)

// besidesRows is what an emptyDir and the pod's ephemeral storage have beside the rows: folders, and the container's logs.
var besidesRows = quantity("256Mi")

// mountSpill adds the volume of spec.arrow.spill to a data node's pod. The rows are in a folder below the volume's own, in which file systems have
// folders that nobody may read.
func mountSpill(dc *v1alpha1.DataCache, pod *corev1.PodSpec) {
	spill := dc.Spec.Arrow.Spill
	if spill == nil {
		return
	}
	container := &pod.Containers[0]
	folder, volume := path.Join(spillMount, "rows"), corev1.VolumeSource{}
	switch {
	case spill.HostPath != nil:
		// Other caches and copies of this one have data nodes of the same number on the machine.
		copyOf := &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.labels['" + lws.GroupIndexLabelKey + "']"}}
		container.Env = append(container.Env, corev1.EnvVar{Name: envCopy, ValueFrom: copyOf})
		folder = path.Join(spillMount, dc.Namespace, dc.Name, "$("+envCopy+")")
		volume.HostPath = &corev1.HostPathVolumeSource{Path: spill.HostPath.Path, Type: ptr.To(corev1.HostPathDirectory)}
	case spill.Ephemeral != nil:
		volume.Ephemeral = &corev1.EphemeralVolumeSource{VolumeClaimTemplate: &corev1.PersistentVolumeClaimTemplate{Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: spill.Ephemeral.StorageClassName,
			AccessModes:      []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources:        corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: spill.Limit}},
		}}}
		pod.SecurityContext.FSGroup = new(int64(imageGroup)) // the root folder of a new file system belongs to root
		pod.SecurityContext.FSGroupChangePolicy = ptr.To(corev1.FSGroupChangeOnRootMismatch)
	default:
		size := spill.Limit.DeepCopy()
		size.Add(besidesRows)
		volume.EmptyDir = &corev1.EmptyDirVolumeSource{SizeLimit: &size}
		addStorage(container.Resources.Requests, spill.Limit)
		addStorage(container.Resources.Limits, spill.Limit)
	}
	container.Env = append(container.Env, corev1.EnvVar{Name: envSpillDir, Value: folder}, variable(envSpillLimit, Decimal(spill.Limit.Value())))
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: spillVolume, MountPath: spillMount})
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: spillVolume, VolumeSource: volume})
}

// addStorage adds the rows to the ephemeral storage that a container is given for what else it writes.
func addStorage(list corev1.ResourceList, rows resource.Quantity) {
	all, given := list[corev1.ResourceEphemeralStorage]
	if !given {
		all = besidesRows.DeepCopy()
	}
	all.Add(rows)
	list[corev1.ResourceEphemeralStorage] = all
}
