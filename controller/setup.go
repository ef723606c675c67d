// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package controller gives TrainJobs their caches: it makes and frees the pods of DataCaches, says how they are doing, and keeps for
// every training runtime a twin whose TrainJobs wait for their cache.
//
// Reconcilers read from informers, decide by pure functions (planFor, statusOf, change, and the objects of an engine) and
// write once. What a TrainJob asks for, internal/inject says.
package controller

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlcontroller "sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/inject"
)

// Options are the platform's choices. Image and Namespace must be set.
type Options struct {
	// Image of the data plane: head and data nodes run its `head` and `node`.
	Image string
	// Gate is how the step of twins looks; its Image is set to Image where it is empty. Heads and data nodes are pulled as it is.
	Gate inject.Gate
	// Namespace that the manager runs in: caches let it read their /status.
	Namespace string
	// ObjectCacheURL is where caches with an objectCache find it; empty: where manifests/object-cache puts it.
	ObjectCacheURL string
	// ClusterDomain ends the names of Services; empty: cluster.local.
	ClusterDomain string
	// Workers is how many DataCaches, and half as many TrainJobs, are reconciled at a time; 0: 16. A head that does not answer holds one
	// up for at most 2 s.
	Workers int

	// Dial opens connections to heads and to the steps that wait for them; nil: to their pods' addresses.
	Dial Dial
	// Now is the clock of idleTTL and times in statuses; nil: time.Now.
	Now func() time.Time
	// Registry takes the metrics; nil: controller-runtime's, which the manager serves. It takes them once.
	Registry prometheus.Registerer
}

func (o *Options) complete() error {
	if o.Image == "" {
		return errors.New("Options.Image: missing, want the image of the data plane")
	}
	if o.Namespace == "" {
		return errors.New("Options.Namespace: missing, want the manager's own namespace")
	}
	if o.Gate.Image == "" {
		o.Gate.Image = o.Image
	}
	if o.ObjectCacheURL == "" {
		o.ObjectCacheURL = "http://datacache-object-cache.datacache-object-cache.svc"
	}
	if o.ClusterDomain == "" {
		o.ClusterDomain = "cluster.local"
	}
	if o.Workers == 0 {
		o.Workers = 16
	}
	if o.Dial == nil {
		o.Dial = dialPod
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return nil
}

// AddToScheme registers every type that the controller reads or writes.
func AddToScheme(scheme *runtime.Scheme) error {
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme, lws.AddToScheme, trainer.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return fmt.Errorf("register API types: %w", err)
		}
	}
	return nil
}

// CacheOptions are what the manager's informers may keep: of Kubernetes' own kinds only what datacache made, and nothing that no
// reconciler reads. A manager without them works, and holds every Pod and Service of the cluster in memory.
func CacheOptions() cache.Options {
	ours := labels.SelectorFromSet(labels.Set{LabelManagedBy: ManagedBy})
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:                   {Label: ours, Transform: slimPod},
			&corev1.Service{}:               {Label: ours},
			&corev1.ServiceAccount{}:        {Label: ours},
			&corev1.ConfigMap{}:             {Label: ours},
			&networkingv1.NetworkPolicy{}:   {Label: ours},
			&policyv1.PodDisruptionBudget{}: {Label: ours},
			&lws.LeaderWorkerSet{}:          {Label: ours},
		},
	}
}

// slimPod keeps of a pod what troubleOf, runningHeads and noticeReconciler look at.
func slimPod(object any) (any, error) {
	if pod, ok := object.(*corev1.Pod); ok {
		pod.ManagedFields, pod.Annotations, pod.Spec = nil, nil, corev1.PodSpec{}
	}
	return object, nil
}

// Setup registers the reconcilers with the manager, which must know the types of AddToScheme. They run where the manager leads.
func Setup(ctx context.Context, mgr ctrl.Manager, o Options) error {
	if err := o.complete(); err != nil {
		return err
	}
	if err := addIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	m, err := newMetrics(o.Registry, mgr.GetClient())
	if err != nil {
		return err
	}
	recorder := mgr.GetEventRecorderFor("datacache")
	k := applier{client: mgr.GetClient(), live: mgr.GetAPIReader()}
	arrow := &arrowEngine{
		applier: k, server: program{o.Image, o.Gate.ImagePullPolicy, o.Gate.ImagePullSecrets, o.ObjectCacheURL}, namespace: o.Namespace,
		heads: heads{o.Dial, headTimeout}, warnings: &warnings{live: mgr.GetAPIReader(), now: o.Now},
	}
	if err := setupCaches(mgr, o, &cacheReconciler{
		applier: k, arrow: arrow, events: newEventRecorder(recorder), metrics: m, now: o.Now,
	}); err != nil {
		return fmt.Errorf("set up the controller of DataCaches: %w", err)
	}
	no := newRefusals()
	if err := setupJobs(mgr, o, &jobReconciler{applier: k, events: newEventRecorder(recorder), refusals: no, clusterDomain: o.ClusterDomain}); err != nil {
		return fmt.Errorf("set up the controller of TrainJobs: %w", err)
	}
	if err := setupNotices(mgr, o, &noticeReconciler{client: mgr.GetClient(), refusals: no, dial: o.Dial}); err != nil {
		return fmt.Errorf("set up the controller of steps that wait: %w", err)
	}
	for _, kind := range []string{trainer.ClusterTrainingRuntimeKind, trainer.TrainingRuntimeKind} {
		if err := setupTwins(mgr, &twinReconciler{applier: k, kind: kind, gate: o.Gate, events: newEventRecorder(recorder)}); err != nil {
			return fmt.Errorf("set up the controller of %s twins: %w", kind, err)
		}
	}
	return nil
}

func addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	for _, index := range []struct {
		object client.Object
		name   string
		values client.IndexerFunc
	}{
		{&corev1.Pod{}, indexCache, cacheOfPod},
		{&corev1.Pod{}, indexStep, stepOfJob},
		{&corev1.Service{}, indexUses, cacheOfService},
		{&trainer.TrainJob{}, indexReference, referenceOf},
		{&trainer.TrainJob{}, indexRuntime, runtimeOf},
	} {
		if err := indexer.IndexField(ctx, index.object, index.name, index.values); err != nil {
			return fmt.Errorf("index %T by %s: %w", index.object, index.name, err)
		}
	}
	return nil
}

// setupCaches: a DataCache is looked at again when its spec or annotations change, its objects or pods do, or the life of a job that uses it.
func setupCaches(mgr ctrl.Manager, o Options, r *cacheReconciler) error {
	spec := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	return ctrl.NewControllerManagedBy(mgr).Named("datacache").
		For(&v1alpha1.DataCache{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Owns(&lws.LeaderWorkerSet{}).
		Watches(&lws.LeaderWorkerSet{}, handler.EnqueueRequestsFromMapFunc(cacheOfOrphan)).
		Owns(&corev1.ConfigMap{}).
		Owns(&corev1.Service{}).
		Owns(&corev1.ServiceAccount{}).
		Owns(&networkingv1.NetworkPolicy{}, spec).
		Owns(&policyv1.PodDisruptionBudget{}, spec).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(cacheRequestOfPod)).
		Watches(&corev1.Service{}, handler.EnqueueRequestsFromMapFunc(usedCache)).
		Watches(&trainer.TrainJob{}, handler.EnqueueRequestsFromMapFunc(cachesOfJob(mgr.GetClient())), builder.WithPredicates(phaseChanged)).
		WithOptions(ctrlcontroller.Options{MaxConcurrentReconciles: o.Workers}).
		Complete(r)
}

// setupJobs: a TrainJob is looked at again when its life changes, its Service does, or a DataCache that it may use.
func setupJobs(mgr ctrl.Manager, o Options, r *jobReconciler) error {
	return ctrl.NewControllerManagedBy(mgr).Named("datacache-trainjob").
		For(&trainer.TrainJob{}, builder.WithPredicates(phaseChanged)).
		Owns(&corev1.Service{}).
		Watches(&v1alpha1.DataCache{}, handler.EnqueueRequestsFromMapFunc(jobsOfCache(mgr.GetClient())), builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(ctrlcontroller.Options{MaxConcurrentReconciles: max(1, o.Workers/2)}).
		Complete(reconcile.AsReconciler(mgr.GetClient(), r))
}

// setupNotices: a pod that waits is looked at again when it starts, when the status of the DataCache that it waits for changes, and now and then.
func setupNotices(mgr ctrl.Manager, o Options, r *noticeReconciler) error {
	return ctrl.NewControllerManagedBy(mgr).Named("datacache-notice").
		For(&corev1.Pod{}, builder.WithPredicates(predicate.NewPredicateFuncs(isStep))).
		Watches(&v1alpha1.DataCache{}, handler.EnqueueRequestsFromMapFunc(stepsOfCache(mgr.GetClient()))).
		WithOptions(ctrlcontroller.Options{MaxConcurrentReconciles: o.Workers}).
		Complete(r)
}

// setupTwins: a source is looked at again when it or its twin changes, or when a TrainJob that names the twin goes.
func setupTwins(mgr ctrl.Manager, r *twinReconciler) error {
	return ctrl.NewControllerManagedBy(mgr).Named("datacache-"+strings.ToLower(r.kind)).
		Watches(newRuntime(r.kind), handler.EnqueueRequestsFromMapFunc(sourceRequests)).
		Watches(&trainer.TrainJob{}, handler.EnqueueRequestsFromMapFunc(r.sourceOfJob), builder.WithPredicates(onlyDeleted)).
		Complete(r)
}
