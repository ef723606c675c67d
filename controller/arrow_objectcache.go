// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

const (
	objectCacheVolume = "object-cache"
	objectCacheMount  = "/var/run/secrets/datacache/object-cache"
	// objectCacheAudience is what the object cache's --audience is where nothing else is set.
	objectCacheAudience = "datacache-object-cache"
	// objectCacheExpiry is how long a token is good; the kubelet writes a new one after 80 % of it.
	objectCacheExpiry = 3600
)

// readThrough has a container read the table through the object cache, if the DataCache says so, and returns the pod's volume that
// holds the token for it: one of the pod's ServiceAccount, bound to the pod, and good for nothing else.
func readThrough(dc *v1alpha1.DataCache, server program, container *corev1.Container) []corev1.Volume {
	through := dc.Spec.Arrow.ObjectCache
	if through == nil {
		return nil
	}
	container.Env = append(container.Env,
		variable(envObjectCache, server.objectCacheURL),
		variable(envObjectCacheBucket, through.Bucket),
		variable(envObjectCacheToken, objectCacheMount+"/token"),
	)
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: objectCacheVolume, MountPath: objectCacheMount, ReadOnly: true})
	token := &corev1.ServiceAccountTokenProjection{Audience: objectCacheAudience, ExpirationSeconds: new(int64(objectCacheExpiry)), Path: "token"}
	return []corev1.Volume{{
		Name:         objectCacheVolume,
		VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{{ServiceAccountToken: token}}}},
	}}
}
