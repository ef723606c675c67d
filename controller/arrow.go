// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"sync"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// arrowEngine keeps a table as Arrow record batches in the pods of a LeaderWorkerSet: each group is a copy of the table, with the
// head as its leader. Only the files arrow*.go depend on LeaderWorkerSets and heads.
type arrowEngine struct {
	applier
	server   serverConfig
	watchers []networkingv1.NetworkPolicyPeer // who may read statuses and metrics: the manager and Prometheus
	heads    heads
	warnings *warnings
	losses   sync.Map // *losses by types.NamespacedName of DataCaches
}

var _ engine = (*arrowEngine)(nil)

func (*arrowEngine) describe(dc *v1alpha1.DataCache) (parts, data string) {
	return fmt.Sprintf("a head and %d data nodes", dc.Spec.Arrow.DataNodes), dc.Spec.Arrow.Data()
}

// provision replaces pods on lost machines, then creates the objects in this order, since the pods need their account and the pinned
// snapshot.
func (e *arrowEngine) provision(ctx context.Context, dc *v1alpha1.DataCache) error {
	if err := e.replaceLost(ctx, dc); err != nil {
		return err
	}
	for _, object := range desiredObjects(dc, e.watchers) {
		if _, err := apply(ctx, e.applier, object); err != nil {
			return err
		}
	}
	want, err := leaderWorkerSet(dc, e.server)
	if err != nil {
		return err
	}
	if err := e.keepSecret(ctx, dc, want); err != nil {
		return err
	}
	_, err = apply(ctx, e.applier, want)
	return err
}

// keepSecret creates the Secret with the cache's key before the pods are created, and again if somebody deleted it and a pod waits
// for it. In that case the pods with the old key must be deleted: they could not authenticate to those with the new one.
func (e *arrowEngine) keepSecret(ctx context.Context, dc *v1alpha1.DataCache, set *lws.LeaderWorkerSet) error {
	err := e.client.Get(ctx, client.ObjectKeyFromObject(set), &lws.LeaderWorkerSet{})
	if apierrors.IsNotFound(err) {
		_, err = e.createSecret(ctx, dc)
		return err
	}
	if err != nil {
		return fmt.Errorf("start DataCache %s: %w", qualified(dc), err)
	}
	pods, err := e.pods(ctx, dc)
	if err != nil || !lacksSecret(pods, secretName(dc)) {
		return err
	}
	created, err := e.createSecret(ctx, dc)
	if err != nil || !created {
		return err
	}
	return e.release(ctx, dc)
}

// createSecret creates the Secret with the key, unless it exists. A Secret with that name is ours, since the name contains the
// DataCache's UID.
func (e *arrowEngine) createSecret(ctx context.Context, dc *v1alpha1.DataCache) (created bool, err error) {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return false, fmt.Errorf("make the cache's key: %w", err)
	}
	err = e.client.Create(ctx, cacheSecret(dc, hex.EncodeToString(key)))
	if apierrors.IsAlreadyExists(err) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("create Secret %s: %w", secretName(dc), err)
	}
	return true, nil
}

// observe queries every running head; if none answers, it derives the status from the pods.
func (e *arrowEngine) observe(ctx context.Context, dc *v1alpha1.DataCache) (observation, error) {
	out := observation{
		endpoint: fmt.Sprintf("grpc://%s.%s:%d", wellknown.ServiceName(dc.Name), dc.Namespace, wellknown.FlightPort),
		selector: labels.SelectorFromSet(headSelector(dc)).String(),
	}
	set, err := e.find(ctx, dc)
	if err != nil || set == nil {
		return out, err
	}
	out.exists, out.leaving, out.created = true, set.DeletionTimestamp != nil, set.CreationTimestamp
	out.replicas, out.readyReplicas = set.Status.Replicas, set.Status.ReadyReplicas
	pods, err := e.pods(ctx, dc)
	if err != nil || out.leaving {
		return out, err
	}
	why, err := e.explain(ctx, dc, set, pods)
	if err != nil {
		return out, err
	}
	combine(&out, set, pods, e.askAll(ctx, pods), why)
	return out, nil
}

// explain returns what prevents the pods from being created or running; nil if they only need time.
func (e *arrowEngine) explain(ctx context.Context, dc *v1alpha1.DataCache, set *lws.LeaderWorkerSet, pods []*corev1.Pod) (*trouble, error) {
	if t, err := e.troubleOfMachines(ctx, dc, pods); t != nil || err != nil {
		return t, err
	}
	if t := troubleOf(pods); t != nil || !needsWarnings(set, pods, e.warnings.now()) {
		return t, nil
	}
	events, err := e.warnings.of(ctx, set.Namespace)
	if err != nil {
		return nil, err
	}
	return troubleOfEvents(set, pods, events), nil
}

// askAll queries the running heads, in the order of their names.
func (e *arrowEngine) askAll(ctx context.Context, pods []*corev1.Pod) []headAnswer {
	var answers []headAnswer
	for _, pod := range runningHeads(pods) {
		status, err := e.heads.ask(ctx, pod)
		answers = append(answers, headAnswer{pod, status, err})
	}
	return answers
}

func (e *arrowEngine) pods(ctx context.Context, dc *v1alpha1.DataCache) ([]*corev1.Pod, error) {
	var list corev1.PodList
	if err := e.client.List(ctx, &list, client.InNamespace(dc.Namespace), client.MatchingFields{indexCache: dc.Name}); err != nil {
		return nil, fmt.Errorf("list pods of DataCache %s: %w", qualified(dc), err)
	}
	pods := make([]*corev1.Pod, 0, len(list.Items))
	for i := range list.Items {
		pods = append(pods, &list.Items[i])
	}
	return pods, nil
}

// find returns the cache's LeaderWorkerSet; nil if there is none, or only one that is not ours.
func (e *arrowEngine) find(ctx context.Context, dc *v1alpha1.DataCache) (*lws.LeaderWorkerSet, error) {
	set := &lws.LeaderWorkerSet{}
	err := e.client.Get(ctx, types.NamespacedName{Namespace: dc.Namespace, Name: wellknown.CacheName(dc.Name)}, set)
	if apierrors.IsNotFound(err) || err == nil && !metav1.IsControlledBy(set, dc) {
		return nil, nil // not found is not an error
	}
	if err != nil {
		return nil, fmt.Errorf("get LeaderWorkerSet of DataCache %s: %w", qualified(dc), err)
	}
	return set, nil
}

// release deletes the LeaderWorkerSet, and with it the pods.
func (e *arrowEngine) release(ctx context.Context, dc *v1alpha1.DataCache) error {
	e.losses.Delete(client.ObjectKeyFromObject(dc))
	set, err := e.find(ctx, dc)
	if err != nil || set == nil {
		return err
	}
	return e.deleteSet(ctx, set)
}

// releaseOrphan deletes the LeaderWorkerSet of a DataCache that no longer exists: a DataCache deleted with --cascade=orphan leaves it
// without an owner.
func (e *arrowEngine) releaseOrphan(ctx context.Context, cache types.NamespacedName) error {
	e.losses.Delete(cache)
	set := &lws.LeaderWorkerSet{}
	err := e.client.Get(ctx, types.NamespacedName{Namespace: cache.Namespace, Name: wellknown.CacheName(cache.Name)}, set)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get LeaderWorkerSet of deleted DataCache %s: %w", cache, err)
	}
	if !isOrphan(set, cache.Name) {
		return nil
	}
	return e.deleteSet(ctx, set)
}

// isOrphan reports whether a LeaderWorkerSet was made for a DataCache with the name and has no owner any more.
func isOrphan(set *lws.LeaderWorkerSet, cache string) bool {
	return set.Labels[wellknown.LabelManagedBy] == wellknown.ManagedBy && set.Labels[wellknown.LabelCache] == cache && len(set.OwnerReferences) == 0
}

// deleteSet deletes in the foreground: the set exists until its pods are gone, so that a cache that is wanted again does not collide
// with the StatefulSets of its last run.
func (e *arrowEngine) deleteSet(ctx context.Context, set *lws.LeaderWorkerSet) error {
	if set.DeletionTimestamp != nil {
		return nil
	}
	err := e.client.Delete(ctx, set, client.PropagationPolicy(metav1.DeletePropagationForeground), client.Preconditions{UID: new(set.UID)})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete LeaderWorkerSet %s: %w", qualified(set), err)
	}
	return nil
}
