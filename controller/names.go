// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

	// annotationPodSettings on a LeaderWorkerSet is the podSettingsHash of its pod template.
	annotationPodSettings = wellknown.Group + "/pod-settings"
	// annotationApplied lists the annotations that the controller wrote, so that it can remove those that are no longer wanted.
	annotationApplied = wellknown.Group + "/applied-annotations"

	// labelQueue and labelPriority put a cache's pods into the Kueue queue of the job that they are for.
	labelQueue    = "kueue.x-k8s.io/queue-name"
	labelPriority = "kueue.x-k8s.io/priority-class"

	labelNamespaceName = "kubernetes.io/metadata.name"
	labelHostname      = "kubernetes.io/hostname"
)

// cacheLabels are on every object of a cache.
func cacheLabels(dc *v1alpha1.DataCache) map[string]string {
	return map[string]string{
		"app.kubernetes.io/name":     wellknown.ManagedBy,
		"app.kubernetes.io/instance": dc.Name,
		wellknown.LabelManagedBy:     wellknown.ManagedBy,
		wellknown.LabelCache:         dc.Name,
	}
}

// podsOf selects a cache's pods: of one role, or of all where role is empty.
func podsOf(dc *v1alpha1.DataCache, role string) map[string]string {
	labels := map[string]string{wellknown.LabelCache: dc.Name}
	if role != "" {
		labels[wellknown.LabelRole] = role
	}
	return labels
}

// headSelector selects a cache's heads by the labels that LeaderWorkerSet sets, which its autoscalers use too.
func headSelector(dc *v1alpha1.DataCache) map[string]string {
	return map[string]string{lws.SetNameLabelKey: wellknown.CacheName(dc.Name), lws.WorkerIndexLabelKey: "0"}
}

// secretName differs for a DataCache that is recreated with the same name, so that an old key is never used for a new cache.
func secretName(dc *v1alpha1.DataCache) string {
	uid := string(dc.UID)
	return wellknown.CacheName(dc.Name) + "-" + uid[:min(8, len(uid))]
}

// owned returns the metadata of an object that is garbage collected with its DataCache.
func owned(dc *v1alpha1.DataCache, name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Name: name, Namespace: dc.Namespace, Labels: cacheLabels(dc),
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(dc, v1alpha1.GroupVersion.WithKind("DataCache"))},
	}
}

// qualified is <namespace>/<name>.
func qualified(object client.Object) string { return client.ObjectKeyFromObject(object).String() }
