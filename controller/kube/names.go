// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// Labels and annotations of the objects that the controller makes. The manager's informers only contain objects with LabelManagedBy.
const (
	// LabelScope is ScopeNamespace on a DataCache that the controller made for all jobs of a namespace (CACHE_SCOPE=namespace).
	LabelScope     = wellknown.Group + "/scope"
	ScopeNamespace = "namespace"

	// AnnotationRetry makes a failed DataCache retry at once, each time that its value changes.
	AnnotationRetry = wellknown.Group + "/retry"

	// AnnotationPodSettings on a LeaderWorkerSet is the podSettingsHash of its pod template.
	AnnotationPodSettings = wellknown.Group + "/pod-settings"
	// AnnotationApplied lists the annotations that the controller wrote, so that it can remove those that are no longer wanted.
	AnnotationApplied = wellknown.Group + "/applied-annotations"

	// LabelQueue and LabelPriority put a cache's pods into the Kueue queue of the job that they are for.
	LabelQueue    = "kueue.x-k8s.io/queue-name"
	LabelPriority = "kueue.x-k8s.io/priority-class"

	LabelNamespaceName = "kubernetes.io/metadata.name"
	LabelHostname      = "kubernetes.io/hostname"
)

// CacheLabels are on every object of a cache.
func CacheLabels(dc *v1alpha1.DataCache) map[string]string {
	return map[string]string{
		"app.kubernetes.io/name":     wellknown.ManagedBy,
		"app.kubernetes.io/instance": dc.Name,
		wellknown.LabelManagedBy:     wellknown.ManagedBy,
		wellknown.LabelCache:         dc.Name,
	}
}

// PodsOf selects a cache's pods: of one role, or of all where role is empty.
func PodsOf(dc *v1alpha1.DataCache, role string) map[string]string {
	labels := map[string]string{wellknown.LabelCache: dc.Name}
	if role != "" {
		labels[wellknown.LabelRole] = role
	}
	return labels
}

// HeadSelector selects a cache's heads by the labels that LeaderWorkerSet sets, which its autoscalers use too.
func HeadSelector(dc *v1alpha1.DataCache) map[string]string {
	return map[string]string{lws.SetNameLabelKey: wellknown.CacheName(dc.Name), lws.WorkerIndexLabelKey: "0"}
}

// SecretName differs for a DataCache that is recreated with the same name, so that an old key is never used for a new cache. It also differs for
// each certificate authority of a cache, so that the Secret's private key always belongs to the certificate in the status.
func SecretName(dc *v1alpha1.DataCache) string {
	uid := string(dc.UID)
	sum := sha256.Sum256([]byte(dc.Status.CABundle))
	return wellknown.CacheName(dc.Name) + "-" + uid[:min(8, len(uid))] + "-" + hex.EncodeToString(sum[:4])
}

// AccessName is the name of the ConfigMap that says whom a DataCache's servers serve.
func AccessName(dataCache string) string { return wellknown.CacheName(dataCache) + "-access" }

// Owned returns the metadata of an object that is garbage collected with its DataCache.
func Owned(dc *v1alpha1.DataCache, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, Namespace: dc.Namespace, Labels: CacheLabels(dc),
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(dc, v1alpha1.GroupVersion.WithKind("DataCache"))},
	}
}

// Qualified is <namespace>/<name>.
func Qualified(object client.Object) string { return client.ObjectKeyFromObject(object).String() }

// KeyOf parses <namespace>/<name>.
func KeyOf(name string) types.NamespacedName {
	namespace, name, _ := strings.Cut(name, "/")
	return types.NamespacedName{Namespace: namespace, Name: name}
}

// JobOf is the TrainJob that the DataCache was made exclusively for; nil for one that outlives its users. The owner reference is
// not that of a controller: Kueue does not charge objects to its quota that a job under its management controls.
func JobOf(dc metav1.Object) *metav1.OwnerReference {
	owners := dc.GetOwnerReferences()
	i := slices.IndexFunc(owners, func(o metav1.OwnerReference) bool {
		return o.APIVersion == trainer.GroupVersion.String() && o.Kind == trainer.TrainJobKind
	})
	if i < 0 {
		return nil
	}
	return &owners[i]
}
