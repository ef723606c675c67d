// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package arrow

import (
	"cmp"
	"context"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/internal/wellknown"
)

// Names of the field indexes of pods that the informers must have, and the field by which each finds a pod.
const (
	IndexCache   = "datacache" // the name of the DataCache that the pod belongs to
	IndexMachine = "machine"   // the name of the Node that the pod is bound to
)

// CacheNameOf returns the values of IndexCache.
func CacheNameOf(object client.Object) []string {
	if name := object.GetLabels()[wellknown.LabelCache]; name != "" {
		return []string{name}
	}
	return nil
}

// MachineNameOf returns the values of IndexMachine.
func MachineNameOf(object client.Object) []string {
	if pod, ok := object.(*corev1.Pod); ok && pod.Spec.NodeName != "" {
		return []string{pod.Spec.NodeName}
	}
	return nil
}

// CachesOfPod maps a pod to the DataCache that it is of, or whose dataset it makes.
func CachesOfPod(_ context.Context, pod client.Object) []reconcile.Request {
	name := cmp.Or(pod.GetLabels()[wellknown.LabelCache], pod.GetLabels()[wellknown.LabelStepOf])
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: pod.GetNamespace(), Name: name}}}
}

// CachesOfOrphan maps a LeaderWorkerSet without an owner to the DataCache that it was made for.
func CachesOfOrphan(_ context.Context, object client.Object) []reconcile.Request {
	set, ok := object.(*lws.LeaderWorkerSet)
	if !ok || !isOrphan(set, set.Labels[wellknown.LabelCache]) {
		return nil
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: set.Namespace, Name: set.Labels[wellknown.LabelCache]}}}
}

// isOrphan reports whether a LeaderWorkerSet was made for a DataCache with the name and has no owner any more.
func isOrphan(set *lws.LeaderWorkerSet, cache string) bool {
	return set.Labels[wellknown.LabelManagedBy] == wellknown.ManagedBy && set.Labels[wellknown.LabelCache] == cache && len(set.OwnerReferences) == 0
}

// ReadinessChanged passes events of machines that begin or end an outage.
var ReadinessChanged = predicate.Funcs{
	CreateFunc: func(event.CreateEvent) bool { return false },
	UpdateFunc: func(e event.UpdateEvent) bool {
		before, ok := e.ObjectOld.(*corev1.Node)
		after, also := e.ObjectNew.(*corev1.Node)
		return ok && also && isReadyMachine(before) != isReadyMachine(after)
	},
}

func isReadyMachine(node *corev1.Node) bool {
	ready := readyOf(node)
	return ready != nil && ready.Status == corev1.ConditionTrue
}

// CachesOnMachine maps a machine to the DataCaches with pods on it.
func CachesOnMachine(reader client.Reader) handler.MapFunc {
	return func(ctx context.Context, node client.Object) []reconcile.Request {
		var pods corev1.PodList
		if err := reader.List(ctx, &pods, client.MatchingFields{IndexMachine: node.GetName()}); err != nil {
			log.FromContext(ctx).Error(err, "list the pods of a machine", "machine", node.GetName())
		}
		var requests []reconcile.Request
		for i := range pods.Items {
			requests = append(requests, CachesOfPod(ctx, &pods.Items[i])...)
		}
		return requests
	}
}

// SlimNode keeps only a machine's name and its condition Ready.
func SlimNode(object any) (any, error) {
	if node, ok := object.(*corev1.Node); ok {
		slim := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: node.Name, UID: node.UID, ResourceVersion: node.ResourceVersion}}
		if ready := readyOf(node); ready != nil {
			ready.LastHeartbeatTime = metav1.Time{} // changes every few seconds
			slim.Status.Conditions = []corev1.NodeCondition{*ready}
		}
		return slim, nil
	}
	return object, nil
}
