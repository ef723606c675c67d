// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/inject"
)

// cacheReconciler gives a DataCache its pods while somebody wants them, and says how it is doing.
type cacheReconciler struct {
	keeper
	server    program
	namespace string // the manager's own
	heads     heads
	teller    *teller
	metrics   *metrics
	now       func() time.Time
}

// Reconcile reads, decides, acts and writes the status once. Everything read but the head's word comes from informers.
func (r *cacheReconciler) Reconcile(ctx context.Context, dc *v1alpha1.DataCache) (ctrl.Result, error) {
	if dc.DeletionTimestamp != nil || dc.Spec.Arrow == nil {
		return ctrl.Result{}, nil // the garbage collector takes all that it owns
	}
	return settle(r.reconcile(ctx, dc))
}

func (r *cacheReconciler) reconcile(ctx context.Context, dc *v1alpha1.DataCache) (ctrl.Result, error) {
	s := seen{now: metav1.NewTime(r.now())}
	owner, err := r.look(ctx, dc, &s)
	if err != nil {
		return ctrl.Result{}, err
	}
	s.plan = live(dc, owner, len(s.users), s.now.Time)
	leader := leaderOf(s.pods)
	if leader != nil && hasLastWord(dc, s.plan) {
		heard, err := r.hearLastWord(ctx, dc, leader, &s)
		if err != nil {
			return ctrl.Result{}, err
		}
		if !heard {
			return ctrl.Result{RequeueAfter: time.Second}, nil
		}
	}
	if err := r.act(ctx, dc, &s); err != nil {
		return ctrl.Result{}, err
	}
	if leader != nil && s.set != nil && s.set.DeletionTimestamp == nil {
		s.head, s.headErr = r.heads.ask(ctx, leader)
	}
	next := observe(dc, s)
	if err := r.record(ctx, dc, &next); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	return ctrl.Result{RequeueAfter: askAgain(&next, s)}, nil
}

// hearLastWord asks the head of a cache that is to go, and records a failure before its pods go: once they do, nobody can be asked again
// should the write be lost to another. False: ask again soon, the head did not answer and may know why the TrainJob failed.
func (r *cacheReconciler) hearLastWord(ctx context.Context, dc *v1alpha1.DataCache, leader *corev1.Pod, s *seen) (heard bool, err error) {
	s.head, s.headErr = r.heads.ask(ctx, leader)
	if s.head == nil {
		return s.now.Sub(s.failed) > patience, nil
	}
	if s.head.State != string(v1alpha1.StateFailed) {
		return true, nil
	}
	next := observe(dc, *s)
	return true, client.IgnoreNotFound(r.record(ctx, dc, &next))
}

// look finds the users, the owning job's phase and the pods.
func (r *cacheReconciler) look(ctx context.Context, dc *v1alpha1.DataCache, s *seen) (phase, error) {
	owner := gone
	if ref := ownerOf(dc); ref != nil {
		job, err := findJob(ctx, r.client, types.NamespacedName{Namespace: dc.Namespace, Name: ref.Name}, ref.UID)
		if err != nil {
			return gone, err
		}
		owner, s.failed = phaseOf(job), failedAt(job)
	}
	users, err := usersOf(ctx, r.client, r.live, dc)
	if err != nil {
		return gone, err
	}
	s.users = users
	var pods corev1.PodList
	if err := r.client.List(ctx, &pods, client.InNamespace(dc.Namespace), client.MatchingFields{indexCache: dc.Name}); err != nil {
		return gone, fmt.Errorf("list pods of DataCache %s: %w", qualified(dc), err)
	}
	for i := range pods.Items {
		s.pods = append(s.pods, &pods.Items[i])
	}
	return owner, nil
}

// act makes the objects be as planned. What somebody must mend is no error to try again soon: s.obstacle says it.
func (r *cacheReconciler) act(ctx context.Context, dc *v1alpha1.DataCache, s *seen) error {
	if !s.plan.run {
		return r.release(ctx, dc)
	}
	set, err := r.provision(ctx, dc)
	if s.obstacle = obstacleOf(err); s.obstacle != nil {
		set, err = r.find(ctx, dc) // pods that run serve all the same
	}
	s.set = set
	return err
}

// find gets the cache's LeaderWorkerSet; nil if there is none, or only one of somebody else.
func (r *cacheReconciler) find(ctx context.Context, dc *v1alpha1.DataCache) (*lws.LeaderWorkerSet, error) {
	set := &lws.LeaderWorkerSet{}
	err := r.client.Get(ctx, types.NamespacedName{Namespace: dc.Namespace, Name: inject.CacheName(dc.Name)}, set)
	if apierrors.IsNotFound(err) || err == nil && !metav1.IsControlledBy(set, dc) {
		return nil, nil // no set is an answer
	}
	if err != nil {
		return nil, fmt.Errorf("get LeaderWorkerSet of DataCache %s: %w", qualified(dc), err)
	}
	return set, nil
}

// obstacleOf is the trouble behind an error that only people can mend: a name that is taken, a quota, a policy; nil for any other error.
func obstacleOf(err error) *trouble {
	taken, template := (*foreignError)(nil), (*templateError)(nil)
	switch {
	case errors.As(err, &template):
		return &trouble{reasonRefused, template.Error()}
	case errors.As(err, &taken):
		return &trouble{reasonNameTaken, taken.Error()}
	case apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return nil
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err):
		return &trouble{reasonRefused, err.Error()}
	}
	return nil
}

func (r *cacheReconciler) provision(ctx context.Context, dc *v1alpha1.DataCache) (*lws.LeaderWorkerSet, error) {
	for _, object := range standing(dc, r.namespace) {
		if _, err := keep(ctx, r.keeper, object); err != nil {
			return nil, err
		}
	}
	want, err := group(dc, r.server)
	if err != nil {
		return nil, err
	}
	err = r.client.Get(ctx, client.ObjectKeyFromObject(want), &lws.LeaderWorkerSet{})
	if apierrors.IsNotFound(err) {
		err = r.createSecret(ctx, dc)
	}
	if err != nil {
		return nil, fmt.Errorf("start DataCache %s: %w", qualified(dc), err)
	}
	return keep(ctx, r.keeper, want)
}

// createSecret makes the key once. A Secret of that name is ours: the name carries the UID of this very DataCache.
func (r *cacheReconciler) createSecret(ctx context.Context, dc *v1alpha1.DataCache) error {
	key := make([]byte, 32)
	if _, err := rand.Read(key); err != nil {
		return fmt.Errorf("make the cache's key: %w", err)
	}
	err := r.client.Create(ctx, cacheSecret(dc, hex.EncodeToString(key)))
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("create Secret %s: %w", secretName(dc), err)
	}
	return nil
}

// release deletes the LeaderWorkerSet, and so the pods. In the foreground: the set stays in sight until its pods are gone, so that a
// cache which is wanted again does not meet the StatefulSets of its last run.
func (r *cacheReconciler) release(ctx context.Context, dc *v1alpha1.DataCache) error {
	set, err := r.find(ctx, dc)
	if err != nil || set == nil || set.DeletionTimestamp != nil {
		return err
	}
	err = r.client.Delete(ctx, set, client.PropagationPolicy(metav1.DeletePropagationForeground), client.Preconditions{UID: new(set.UID)})
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("release DataCache %s: delete LeaderWorkerSet: %w", qualified(dc), err)
	}
	return nil
}

// record writes the status if it differs, under the resource version that it was made from: only then did the step happen just now, and
// only then are its event and metrics told. Who loses to another write looks again.
func (r *cacheReconciler) record(ctx context.Context, dc *v1alpha1.DataCache, next *v1alpha1.DataCacheStatus) error {
	if equality.Semantic.DeepEqual(&dc.Status, next) {
		return nil
	}
	old := dc.DeepCopy()
	dc.Status = *next
	if err := r.client.Status().Patch(ctx, dc, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{})); err != nil {
		return fmt.Errorf("write status of DataCache %s: %w", qualified(dc), err)
	}
	r.metrics.observe(&old.Status, next, r.now())
	h := change(dc, &old.Status, next)
	if h == nil {
		return nil
	}
	r.teller.tell(dc, h)
	return r.tellUsers(ctx, old.Status.UsedBy, next.UsedBy, h)
}

// tellUsers says it of the TrainJobs that use the cache, or did until now: the SDK shows a TrainJob's events alone.
func (r *cacheReconciler) tellUsers(ctx context.Context, before, now []string, h *happening) error {
	names := slices.Compact(slices.Sorted(slices.Values(slices.Concat(before, now))))
	for _, name := range names[:min(len(names), maxTold)] {
		job := &trainer.TrainJob{}
		err := r.client.Get(ctx, keyOf(name), job)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return fmt.Errorf("tell TrainJob %s: %w", name, err)
		}
		r.teller.tell(job, h)
	}
	return nil
}
