// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/wellknown"
)

const (
	// credentialsVolume has a folder for each cache of the TrainJob.
	credentialsVolume = "datacache-credentials"
	// tokenSeconds is the lifetime of a token; the kubelet renews it, and the loader reads it for each call.
	tokenSeconds = 3600
)

var credentialsMount = corev1.VolumeMount{Name: credentialsVolume, MountPath: wellknown.CredentialsFolder, ReadOnly: true}

// credentials returns the volume with a token for each cache that the TrainJob asks for, with the certificate of its authority, as soon as
// there is one, and with the name of the first one's dataset, if the TrainJob reads one; nil if the TrainJob can't be told from others by id yet, or settings want none.
func credentials(parsed *request.Job, asked *request.Request, id string, settings Settings) *corev1.Volume {
	if id == "" || settings.NoCredentials {
		return nil
	}
	authorities := &corev1.ConfigMapProjection{LocalObjectReference: corev1.LocalObjectReference{Name: wellknown.AuthoritiesName(id)}, Optional: new(true)}
	var sources []corev1.VolumeProjection
	add := func(folder, audience string) {
		sources = append(sources, corev1.VolumeProjection{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
			Audience: wellknown.JobAudience(audience, id), ExpirationSeconds: ptr.To[int64](tokenSeconds), Path: folder + "/" + wellknown.TokenFile,
		}})
		authorities.Items = append(authorities.Items, corev1.KeyToPath{Key: folder, Path: folder + "/" + wellknown.AuthorityFile})
	}
	if asked.Dataset != "" {
		sources = append(sources, corev1.VolumeProjection{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{
			Path:     wellknown.OwnCredentials + "/" + wellknown.DatasetFile,
			FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.annotations['" + wellknown.AnnotationDataset + "']"},
		}}}})
	}
	switch {
	case len(asked.References) > 0:
		for _, use := range parsed.Uses() {
			add(use.Folder, wellknown.Audience(use.Key.Namespace, use.Key.Name))
		}
	case asked.Shared:
		add(wellknown.OwnCredentials, wellknown.Audience(parsed.Namespace, asked.Name))
	case parsed.Name == id:
		add(wellknown.OwnCredentials, wellknown.Audience(parsed.Namespace, id))
	default:
		add(wellknown.OwnCredentials, wellknown.PlacementAudience(id))
	}
	sources = append(sources, corev1.VolumeProjection{ConfigMap: authorities})
	return &corev1.Volume{Name: credentialsVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}}}
}

// HasCredentials reports whether training pods of a JobSet have tokens for caches.
func HasCredentials(spec *jobset.JobSetSpec) bool {
	return slices.ContainsFunc(spec.ReplicatedJobs, func(job jobset.ReplicatedJob) bool {
		return slices.ContainsFunc(job.Template.Spec.Template.Spec.Volumes, func(v corev1.Volume) bool { return v.Name == credentialsVolume })
	})
}
