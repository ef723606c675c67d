// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"encoding/json"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// Access is the file from which a cache's servers know whom they serve (docs/adr/0036-known-readers.md).
type Access struct {
	Readers    v1alpha1.Readers       `json:"readers"`
	Rows       v1alpha1.RowEncryption `json:"rows"`
	Audiences  []string               `json:"audiences"`
	Jobs       map[string]string      `json:"jobs,omitempty"`
	Namespaces []string               `json:"namespaces"`
	Accounts   []string               `json:"accounts,omitempty"`
	Writers    []string               `json:"writers,omitempty"`
	Issuers    []Issuer               `json:"issuers,omitempty"`

	// ObjectCacheCA has the certificates, PEM, by which the servers verify the object cache; empty if unknown. It has a key of its own in the ConfigMap,
	// and is not in the file.
	ObjectCacheCA string `json:"-"`
}

// Issuer is who signs tokens, and the JSON Web Key Set with which they are checked. Without Audience it is the cluster; with it an OpenID provider,
// whose tokens must have one of Values in Claim.
type Issuer struct {
	URL      string          `json:"url"`
	Keys     json.RawMessage `json:"keys"`
	Audience string          `json:"audience,omitempty"`
	Claim    string          `json:"claim,omitempty"`
	Values   []string        `json:"values,omitempty"`
}

const (
	accessKey      = "ACCESS"
	objectCacheKey = "OBJECT_CACHE_CA"
	accessVolume   = "access"
	accessMount    = "/etc/datacache/access"
	accessFile     = "access.json"
	authorityFile  = "authority.pem"
)

// AccessConfig is the ConfigMap with the file. It is not the one with the settings, all of which heads get as variables, whose size is limited.
func AccessConfig(dc *v1alpha1.DataCache, access Access) *corev1.ConfigMap {
	text, err := json.Marshal(access)
	if err != nil {
		panic(err) // keys come from JSON, and texts can always be encoded
	}
	data := map[string]string{accessKey: string(text)}
	if access.ObjectCacheCA != "" {
		data[objectCacheKey] = access.ObjectCacheCA
	}
	return &corev1.ConfigMap{ObjectMeta: kube.Owned(dc, kube.AccessName(dc.Name)), Data: data}
}

// Writers are those that may put datasets, NAMESPACE/NAME or NAMESPACE/*; nil for everybody who may read.
func Writers(dc *v1alpha1.DataCache, readers v1alpha1.Readers) []string {
	switch puts := dc.Spec.Arrow.Puts; {
	case !dc.Spec.Arrow.MayPut():
		return nil
	case len(puts.Writers) > 0:
		return slices.Sorted(slices.Values(puts.Writers))
	case readers == v1alpha1.ReadersKnown:
		return []string{dc.Namespace + "/*"}
	}
	return nil
}

// AccessIn returns what the ConfigMap has; the zero value of the file if it has none.
func AccessIn(config *corev1.ConfigMap) Access {
	var access Access
	if json.Unmarshal([]byte(config.Data[accessKey]), &access) != nil {
		access = Access{} // somebody changed it, and it is about to be written anew
	}
	access.ObjectCacheCA = config.Data[objectCacheKey]
	return access
}

// mountAccess adds the file of Access and that of the cache's authority to a pod. The kubelet updates the first one when the ConfigMap changes.
// The second one is optional here, so that a pod without the Secret says that it waits for it: a variable names that too.
func mountAccess(dc *v1alpha1.DataCache, pod *corev1.PodSpec) {
	container := &pod.Containers[0]
	container.Env = append(container.Env, variable(envAccess, accessMount+"/"+accessFile), variable(envAuthority, accessMount+"/"+authorityFile))
	container.VolumeMounts = append(container.VolumeMounts, corev1.VolumeMount{Name: accessVolume, MountPath: accessMount, ReadOnly: true})
	pod.Volumes = append(pod.Volumes, corev1.Volume{Name: accessVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ConfigMap: &corev1.ConfigMapProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: kube.AccessName(dc.Name)},
			Items:                []corev1.KeyToPath{{Key: accessKey, Path: accessFile}},
		}},
		{Secret: &corev1.SecretProjection{
			LocalObjectReference: corev1.LocalObjectReference{Name: kube.SecretName(dc)},
			Items:                []corev1.KeyToPath{{Key: authorityKey, Path: authorityFile}},
			Optional:             new(true),
		}},
	}}}})
}

// serviceNames are the DNS names of the cache's Service.
func serviceNames(dc *v1alpha1.DataCache, domain string) string {
	name := wellknown.ServiceName(dc.Name)
	short := name + "." + dc.Namespace
	return strings.Join([]string{name, short, short + ".svc", short + ".svc." + domain}, ",")
}

// SecretOf is the name of the Secret that the pods of a LeaderWorkerSet take the cache's key from.
func SecretOf(set *lws.LeaderWorkerSet) string {
	for _, c := range set.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers {
		for _, v := range c.Env {
			if v.Name == envSecret && v.ValueFrom != nil && v.ValueFrom.SecretKeyRef != nil {
				return v.ValueFrom.SecretKeyRef.Name
			}
		}
	}
	return ""
}
