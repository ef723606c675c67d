// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/inject"
)

// arrowEngine keeps a table as Arrow record batches in the pods of a LeaderWorkerSet: one group a copy of the table, the head its leader.
// Everything that knows LeaderWorkerSets and heads is in the files arrow*.go.
type arrowEngine struct {
	applier
	server    program
	namespace string // the manager's own
	heads     heads
	warnings  *warnings
}

var _ engine = (*arrowEngine)(nil)

func (*arrowEngine) describe(dc *v1alpha1.DataCache) (parts, data string) {
	return fmt.Sprintf("a head and %d data nodes", dc.Spec.Arrow.DataNodes), "table " + dc.Spec.Arrow.Table
}

// provision makes the objects in this order: pods must find their account and their pin.
func (e *arrowEngine) provision(ctx context.Context, dc *v1alpha1.DataCache) error {
	for _, object := range desiredObjects(dc, e.namespace) {
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

// keepSecret makes the cache's key where the pods are about to be made, and anew where a pod waits for a key that somebody deleted. The
// pods that have the old key must go then: they would not know those with the new one.
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

// createSecret makes the key, unless there is one. A Secret of that name is ours: the name carries the UID of this very DataCache.
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

// observe asks every head that runs; what none of them answers, the pods tell.
func (e *arrowEngine) observe(ctx context.Context, dc *v1alpha1.DataCache) (observation, error) {
	out := observation{
		endpoint: fmt.Sprintf("grpc://%s.%s:%d", inject.ServiceName(dc.Name), dc.Namespace, inject.FlightPort),
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
	why, err := e.explain(ctx, set, pods)
	if err != nil {
		return out, err
	}
	combine(&out, set, pods, e.askAll(ctx, pods), why)
	return out, nil
}

// explain finds what keeps the pods from being there or from running; nil where they only need time.
func (e *arrowEngine) explain(ctx context.Context, set *lws.LeaderWorkerSet, pods []*corev1.Pod) (*trouble, error) {
	if t := troubleOf(pods); t != nil || !needsWarnings(set, pods, e.warnings.now()) {
		return t, nil
	}
	events, err := e.warnings.of(ctx, set.Namespace)
	if err != nil {
		return nil, err
	}
	return troubleOfEvents(set, pods, events), nil
}

// askAll asks the heads that run, in the order of their names.
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

// find gets the cache's LeaderWorkerSet; nil if there is none, or only one of somebody else.
func (e *arrowEngine) find(ctx context.Context, dc *v1alpha1.DataCache) (*lws.LeaderWorkerSet, error) {
	set := &lws.LeaderWorkerSet{}
	err := e.client.Get(ctx, types.NamespacedName{Namespace: dc.Namespace, Name: inject.CacheName(dc.Name)}, set)
	if apierrors.IsNotFound(err) || err == nil && !metav1.IsControlledBy(set, dc) {
		return nil, nil // no set is an answer
	}
	if err != nil {
		return nil, fmt.Errorf("get LeaderWorkerSet of DataCache %s: %w", qualified(dc), err)
	}
	return set, nil
}

// release deletes the LeaderWorkerSet, and so the pods.
func (e *arrowEngine) release(ctx context.Context, dc *v1alpha1.DataCache) error {
	set, err := e.find(ctx, dc)
	if err != nil || set == nil {
		return err
	}
	return e.deleteSet(ctx, set)
}

// releaseOrphan deletes the LeaderWorkerSet of a DataCache that is gone: one that was deleted with --cascade=orphan leaves it without an
// owner, and nobody would end it.
func (e *arrowEngine) releaseOrphan(ctx context.Context, cache types.NamespacedName) error {
	set := &lws.LeaderWorkerSet{}
	err := e.client.Get(ctx, types.NamespacedName{Namespace: cache.Namespace, Name: inject.CacheName(cache.Name)}, set)
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

// isOrphan tells whether a LeaderWorkerSet was made for a DataCache of the name and has no owner any more.
func isOrphan(set *lws.LeaderWorkerSet, cache string) bool {
	return set.Labels[LabelManagedBy] == ManagedBy && set.Labels[inject.LabelCache] == cache && len(set.OwnerReferences) == 0
}

// deleteSet deletes in the foreground: the set stays in sight until its pods are gone, so that a cache which is wanted again does not meet
// the StatefulSets of its last run.
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
