// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/kube"
)

const (
	objectCacheVolume = "object-cache"
	objectCacheMount  = "/var/run/secrets/datacache/object-cache"
	// objectCacheAudience is the default of the object cache's --audience.
	objectCacheAudience = "datacache-object-cache"
	// objectCacheExpiry is the lifetime of a token in seconds; the kubelet renews it after 80 % of that.
	objectCacheExpiry = 3600
	// objectCacheCAKey is the key of a ConfigMap of authorities, and the file's name in the volume.
	objectCacheCAKey = "ca.crt"
)

// readThrough configures a container to read the table through the object cache, if the DataCache requests it, and returns the pod's
// volume with the token for it: a token of the pod's ServiceAccount that is bound to the pod and valid only for the object cache.
func readThrough(dc *v1alpha1.DataCache, server Server, container *corev1.Container) []corev1.Volume {
	through := dc.Spec.Arrow.ObjectCache
	if through == nil {
		return nil
	}
	container.Env = append(container.Env,
		variable(envObjectCache, server.ObjectCacheURL),
		variable(envObjectCacheBucket, through.Bucket),
		variable(envObjectCacheToken, objectCacheMount+"/token"),
	)
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: objectCacheVolume, MountPath: objectCacheMount, ReadOnly: true})
	sources := []corev1.VolumeProjection{{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{
		Audience: objectCacheAudience, ExpirationSeconds: new(int64(objectCacheExpiry)), Path: "token",
	}}}
	if server.ObjectCacheCA != "" {
		container.Env = append(container.Env, variable(envObjectCacheCA, objectCacheMount+"/"+objectCacheCAKey))
		name, key := server.ObjectCacheCA, objectCacheCAKey
		if strings.Contains(name, "/") { // of another namespace: the cache's own ConfigMap has a copy
			name, key = kube.AccessName(dc.Name), objectCacheKey
		}
		sources = append(sources, corev1.VolumeProjection{ConfigMap: &corev1.ConfigMapProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: name},
			Items:                []corev1.KeyToPath{{Key: key, Path: objectCacheCAKey}},
			Optional:             new(true), // without it the table is read from its bucket
		}})
	}
	return []corev1.Volume{{
		Name:         objectCacheVolume,
		VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: sources}},
	}}
}
