// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package arrow runs caches of tables: it keeps a table as Arrow record batches in the pods of a LeaderWorkerSet.
package arrow

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/engine"
	"github.com/kubeflow/datacache/controller/heads"
	"github.com/kubeflow/datacache/controller/issuer"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/controller/objectca"
	"github.com/kubeflow/datacache/controller/podstate"
	"github.com/kubeflow/datacache/controller/workload"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// Engine keeps a table in the pods of a LeaderWorkerSet: each group is a copy of the table, with the head as its leader. All exported fields
// are required but NoAnyone. It is safe for concurrent use.
type Engine struct {
	kube.Applier
	Server        workload.Server
	Watchers      []networkingv1.NetworkPolicyPeer // who may read statuses and metrics: the manager and Prometheus
	Heads         heads.Client
	Warnings      *podstate.Warnings
	Readers       v1alpha1.Readers // of caches that don't say
	NoAnyone      bool             // no cache may serve anyone, whatever its spec says
	Keys          *issuer.Source
	ObjectCacheCA *objectca.Source
	Now           func() time.Time

	losses   sync.Map // *losses by types.NamespacedName of DataCaches
	accesses sync.Map // workload.Access by types.NamespacedName of DataCaches, as applied
}

var _ engine.Engine = (*Engine)(nil)

// Describe implements engine.Engine.
func (*Engine) Describe(dc *v1alpha1.DataCache) (parts, data string) {
	return fmt.Sprintf("a head and %d data nodes", dc.Spec.Arrow.DataNodes), dc.Spec.Arrow.Data()
}

// Provision replaces pods on lost machines, then creates the objects in this order, since the pods need their account and the pinned
// snapshot.
func (e *Engine) Provision(ctx context.Context, dc *v1alpha1.DataCache) error {
	if err := e.replaceLost(ctx, dc); err != nil {
		return err
	}
	access, err := e.accessOf(ctx, dc)
	if err != nil {
		return err
	}
	e.accesses.Store(client.ObjectKeyFromObject(dc), access)
	for _, object := range workload.Objects(dc, access, e.Watchers) {
		if _, err := kube.Apply(ctx, e.Applier, object); err != nil {
			return err
		}
	}
	want, err := workload.LeaderWorkerSet(dc, e.Server)
	if err != nil {
		return err
	}
	changed, err := e.keepSecret(ctx, dc, want)
	if err == nil && changed {
		want, err = workload.LeaderWorkerSet(dc, e.Server)
	}
	if err != nil {
		return err
	}
	_, err = kube.Apply(ctx, e.Applier, want)
	return err
}

// Observe queries every running head; if none answers, it derives the status from the pods.
func (e *Engine) Observe(ctx context.Context, dc *v1alpha1.DataCache) (engine.Observation, error) {
	out := engine.Observation{Selector: labels.SelectorFromSet(kube.HeadSelector(dc)).String()}
	set, err := e.find(ctx, dc)
	if err != nil {
		return out, err
	}
	out.Access = e.accessConditions(ctx, dc, set, nil)
	out.Endpoint = endpoint(dc, out.Access)
	if set == nil {
		return out, nil
	}
	out.Exists, out.Leaving, out.Created = true, set.DeletionTimestamp != nil, set.CreationTimestamp
	out.Replicas, out.ReadyReplicas = set.Status.Replicas, set.Status.ReadyReplicas
	pods, err := e.pods(ctx, dc)
	if err != nil || out.Leaving {
		return out, err
	}
	why, err := e.explain(ctx, dc, set, pods)
	if err != nil {
		return out, err
	}
	answers := e.askAll(ctx, pods)
	out.Access = e.accessConditions(ctx, dc, set, answers)
	out.Again = slices.ContainsFunc(answers, func(a heads.Answer) bool { return a.Status != nil && e.Keys.Lacks(a.Status.Access.UnknownKey) })
	heads.Combine(&out, set, pods, answers, why)
	return out, nil
}

// explain returns what prevents the pods from being created or running; nil if they only need time.
func (e *Engine) explain(ctx context.Context, dc *v1alpha1.DataCache, set *lws.LeaderWorkerSet, pods []*corev1.Pod) (*podstate.Trouble, error) {
	if t, err := e.troubleOfMachines(ctx, dc, pods); t != nil || err != nil {
		return t, err
	}
	if t := podstate.TroubleOf(pods); t != nil || !podstate.NeedsWarnings(set, pods, e.Warnings.Now()) {
		return t, nil
	}
	events, err := e.Warnings.Of(ctx, set.Namespace)
	if err != nil {
		return nil, err
	}
	return podstate.TroubleOfEvents(set, pods, events), nil
}

// askAll queries the running heads, in the order of their names.
func (e *Engine) askAll(ctx context.Context, pods []*corev1.Pod) []heads.Answer {
	var answers []heads.Answer
	for _, pod := range podstate.RunningHeads(pods) {
		status, err := e.Heads.Ask(ctx, pod)
		answers = append(answers, heads.Answer{Pod: pod, Status: status, Err: err})
	}
	return answers
}

func (e *Engine) pods(ctx context.Context, dc *v1alpha1.DataCache) ([]*corev1.Pod, error) {
	var list corev1.PodList
	if err := e.Client.List(ctx, &list, client.InNamespace(dc.Namespace), client.MatchingFields{IndexCache: dc.Name}); err != nil {
		return nil, fmt.Errorf("list pods of DataCache %s: %w", kube.Qualified(dc), err)
	}
	pods := make([]*corev1.Pod, 0, len(list.Items))
	for i := range list.Items {
		pods = append(pods, &list.Items[i])
	}
	return pods, nil
}

// find returns the cache's LeaderWorkerSet; nil if there is none, or only one that is not ours.
func (e *Engine) find(ctx context.Context, dc *v1alpha1.DataCache) (*lws.LeaderWorkerSet, error) {
	set := &lws.LeaderWorkerSet{}
	err := e.Client.Get(ctx, types.NamespacedName{Namespace: dc.Namespace, Name: wellknown.CacheName(dc.Name)}, set)
	if apierrors.IsNotFound(err) || err == nil && !metav1.IsControlledBy(set, dc) {
		return nil, nil // not found is not an error
	}
	if err != nil {
		return nil, fmt.Errorf("get LeaderWorkerSet of DataCache %s: %w", kube.Qualified(dc), err)
	}
	return set, nil
}

// Release deletes the LeaderWorkerSet, and with it the pods.
func (e *Engine) Release(ctx context.Context, dc *v1alpha1.DataCache) error {
	e.forget(client.ObjectKeyFromObject(dc))
	set, err := e.find(ctx, dc)
	if err != nil || set == nil {
		return err
	}
	return e.deleteSet(ctx, set)
}

func (e *Engine) forget(cache types.NamespacedName) {
	e.losses.Delete(cache)
	e.accesses.Delete(cache)
}

// ReleaseOrphan deletes the LeaderWorkerSet of a DataCache that no longer exists: a DataCache deleted with --cascade=orphan leaves it
// without an owner.
func (e *Engine) ReleaseOrphan(ctx context.Context, cache types.NamespacedName) error {
	e.forget(cache)
	set := &lws.LeaderWorkerSet{}
	err := e.Client.Get(ctx, types.NamespacedName{Namespace: cache.Namespace, Name: wellknown.CacheName(cache.Name)}, set)
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

// deleteSet deletes in the foreground: the set exists until its pods are gone, so that a cache that is wanted again does not collide
// with the StatefulSets of its last run.
func (e *Engine) deleteSet(ctx context.Context, set *lws.LeaderWorkerSet) error {
	if set.DeletionTimestamp != nil {
		return nil
	}
	err := e.Client.Delete(ctx, set, client.PropagationPolicy(metav1.DeletePropagationForeground), client.Preconditions{UID: new(set.UID)})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("delete LeaderWorkerSet %s: %w", kube.Qualified(set), err)
	}
	return nil
}
