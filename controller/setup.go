// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package controller gives TrainJobs their caches: it creates and releases the pods of DataCaches, maintains their status, and keeps
// for every training runtime a twin, a copy whose TrainJobs wait for their cache.
//
// Reconcilers read from informers, decide with pure functions (planFor, statusOf, change, and the object functions of an engine), and
// write once. internal/inject determines what a TrainJob requests.
package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	fluidapi "github.com/fluid-cloudnative/fluid/api/v1alpha1"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	batchv1 "k8s.io/api/batch/v1"
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
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	ctrlsource "sigs.k8s.io/controller-runtime/pkg/source"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/arrow"
	"github.com/kubeflow/datacache/controller/derive"
	"github.com/kubeflow/datacache/controller/fluid"
	"github.com/kubeflow/datacache/controller/heads"
	"github.com/kubeflow/datacache/controller/issuer"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/controller/objectca"
	"github.com/kubeflow/datacache/controller/podstate"
	"github.com/kubeflow/datacache/controller/queue"
	"github.com/kubeflow/datacache/controller/workload"
	"github.com/kubeflow/datacache/internal/inject"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// Options are the platform's settings. Image and Namespace are required.
type Options struct {
	// Image of the data plane, whose commands `head` and `node` the pods run.
	Image string
	// Gate configures the waiting step in twins; its Image defaults to Image. Heads and data nodes use its pull settings.
	Gate inject.Gate
	// Namespace that the manager runs in; caches admit requests for their /status from it.
	Namespace string
	// ObjectCacheURL is the URL of the object cache for caches that use one; empty: the Service of manifests/object-cache.
	ObjectCacheURL string
	// ObjectCacheCA is the name of a ConfigMap whose key ca.crt has the authorities of the object cache's certificates, as PEM: NAMESPACE/NAME,
	// of which caches get a copy, or NAME, which must be in the DataCaches' namespaces. Empty: those of the image, or, without ObjectCacheURL,
	// the ConfigMap that the object cache of manifests/object-cache keeps.
	ObjectCacheCA string
	// ClusterDomain is the cluster's DNS domain, with which names of Services end; empty: cluster.local.
	ClusterDomain string
	// StatusAddress is the host:port on which steps that wait for files ask for the state of their cache (inject.Settings.StatusURL);
	// empty: none is served, and no caches of files are made.
	StatusAddress string
	// Readers says whom a cache without spec.access.readers serves; empty: known readers.
	Readers v1alpha1.Readers
	// NoAnyone makes all caches serve known readers only.
	NoAnyone bool
	// MetricsFrom are the pods, besides the manager's namespace, that the NetworkPolicies of caches admit to their HTTP port, which serves
	// metrics: Prometheus.
	MetricsFrom []networkingv1.NetworkPolicyPeer
	// Gangs makes the PodGroups of TrainJobs with a cache require only the pods that train. It needs rights for PodGroups
	// (manifests/components/gangs), and for kinds that are installed when the manager starts.
	Gangs bool
	// Kueue answers Kueue's AdmissionCheck of caches. It needs rights for Workloads (manifests/components/kueue), and Kueue.
	Kueue bool
	// QueuePatience is how long a cache may wait for quota while the quota of its TrainJob is reserved; 0: 5 min.
	QueuePatience time.Duration
	// Workers is the number of DataCaches reconciled concurrently; half as many TrainJobs are. 0: 16. A head that does not answer
	// blocks a worker for at most 2 s.
	Workers int

	// Dial connects to heads and to the steps that wait for them; nil: to their pods' IP addresses.
	Dial heads.Dial
	// Patience is how long a TrainJob with a Ready cache may take for its next step before its events say what it waits for; 0: 10 s.
	Patience time.Duration
	// IdleAfter is how long no rank may get rows from a cache before its condition Read says so; 0: 5 min.
	IdleAfter time.Duration
	// Now is the clock for idleTTL and times in statuses; nil: time.Now.
	Now func() time.Time
	// Tracer of reconciliations; nil: no spans are made.
	Tracer trace.Tracer
	// TracesEnv are environment variables, by name, that tell head and data nodes where to send their traces. A DataCache whose templates
	// name a collector gets none of them. They must hold no secrets, since whoever may read pods can read them.
	TracesEnv map[string]string
	// Registry is where the metrics are registered; nil: controller-runtime's, which the manager serves. Each registry can be used
	// once.
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
		o.ObjectCacheURL = "https://datacache-object-cache.datacache-object-cache.svc"
		o.ObjectCacheCA = cmp.Or(o.ObjectCacheCA, "datacache-object-cache/datacache-object-cache-ca")
	}
	if o.ClusterDomain == "" {
		o.ClusterDomain = "cluster.local"
	}
	if o.Readers == "" {
		o.Readers = v1alpha1.ReadersKnown
	}
	if o.Workers == 0 {
		o.Workers = 16
	}
	if o.Patience == 0 {
		o.Patience = defaultPatience
	}
	if o.QueuePatience == 0 {
		o.QueuePatience = queue.DefaultPatience
	}
	if o.IdleAfter == 0 {
		o.IdleAfter = defaultIdleAfter
	}
	if o.Dial == nil {
		o.Dial = heads.DialPod
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return nil
}

// AddToScheme registers every type that the controller reads or writes.
func AddToScheme(scheme *runtime.Scheme) error {
	for _, add := range []func(*runtime.Scheme) error{
		batchv1.AddToScheme, corev1.AddToScheme, networkingv1.AddToScheme, policyv1.AddToScheme, fluidapi.AddToScheme, jobset.AddToScheme, lws.AddToScheme, trainer.AddToScheme, v1alpha1.AddToScheme,
	} {
		if err := add(scheme); err != nil {
			return fmt.Errorf("register API types: %w", err)
		}
	}
	return nil
}

// CacheOptions restrict the manager's informers: of Kubernetes' own kinds they contain only objects that datacache made, and only
// fields that reconcilers read. Without them a manager works, but holds every Pod and Service of the cluster in memory.
func CacheOptions() cache.Options {
	ours := labels.SelectorFromSet(labels.Set{wellknown.LabelManagedBy: wellknown.ManagedBy})
	return cache.Options{
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:                   {Label: ours, Transform: slimPod},
			&corev1.Node{}:                  {Transform: arrow.SlimNode},
			&corev1.Service{}:               {Label: ours},
			&corev1.ServiceAccount{}:        {Label: ours},
			&corev1.ConfigMap{}:             {Label: ours},
			&networkingv1.NetworkPolicy{}:   {Label: ours},
			&policyv1.PodDisruptionBudget{}: {Label: ours},
			&lws.LeaderWorkerSet{}:          {Label: ours},
		},
	}
}

// slimPod keeps only the parts of a pod that packages podstate and arrow, and noticeReconciler, read.
func slimPod(object any) (any, error) {
	if pod, ok := object.(*corev1.Pod); ok {
		pod.ManagedFields, pod.Annotations, pod.Spec = nil, nil, corev1.PodSpec{NodeName: pod.Spec.NodeName}
	}
	return object, nil
}

// Setup registers the reconcilers with the manager, which must know the types of AddToScheme. They run only on the leader.
func Setup(ctx context.Context, mgr ctrl.Manager, o Options) error {
	if err := o.complete(); err != nil {
		return err
	}
	if err := addIndexes(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	m, err := newMetrics(o.Registry, mgr.GetClient(), mgr.Elected())
	if err != nil {
		return err
	}
	keys, err := issuer.New(mgr.GetConfig(), mgr.GetHTTPClient(), o.Now)
	if err != nil {
		return err
	}
	recorder := mgr.GetEventRecorderFor("datacache")
	k := kube.Applier{Client: mgr.GetClient(), Live: mgr.GetAPIReader()}
	events := &podstate.Warnings{Live: mgr.GetAPIReader(), Now: o.Now}
	queues, err := newQueues(ctx, mgr, o)
	if err != nil {
		return err
	}
	tables, files := o.tables(k, events, keys), o.files(mgr, k, events, queues)
	if o.StatusAddress != "" {
		if err := mgr.Add(&statusServer{address: o.StatusAddress, caches: mgr.GetClient(), live: mgr.GetAPIReader()}); err != nil {
			return fmt.Errorf("set up the status address: %w", err)
		}
	}
	waits, changed := newSentences(), make(chan event.GenericEvent)
	if err := setupCaches(mgr, o, &cacheReconciler{
		Applier: k, arrow: tables, fluid: files, events: newEventRecorder(recorder), metrics: m, now: o.Now, waits: waits, idleAfter: o.IdleAfter, queues: queues,
	}, changed); err != nil {
		return fmt.Errorf("set up the controller of DataCaches: %w", err)
	}
	if err := setupProgress(mgr, o, &progressReconciler{
		client: mgr.GetClient(), reader: &jobReader{mgr.GetClient(), mgr.GetAPIReader(), events, queues}, events: newEventRecorder(recorder),
		waits: waits, changed: changed, now: o.Now, patience: o.Patience,
	}); err != nil {
		return fmt.Errorf("set up the controller of TrainJobs that wait: %w", err)
	}
	no := newSentences()
	if err := setupJobs(mgr, o, &jobReconciler{Applier: k, events: newEventRecorder(recorder), refusals: no, clusterDomain: o.ClusterDomain, queues: queues}); err != nil {
		return fmt.Errorf("set up the controller of TrainJobs: %w", err)
	}
	if err := setupNotices(mgr, o, &noticeReconciler{client: mgr.GetClient(), refusals: no, dial: o.Dial}); err != nil {
		return fmt.Errorf("set up the controller of steps that wait: %w", err)
	}
	for _, kind := range []string{trainer.ClusterTrainingRuntimeKind, trainer.TrainingRuntimeKind} {
		if err := setupTwins(mgr, o, &twinReconciler{Applier: k, kind: kind, gate: o.Gate, events: newEventRecorder(recorder)}); err != nil {
			return fmt.Errorf("set up the controller of %s twins: %w", kind, err)
		}
	}
	if err := setupQueues(mgr, o, k, &queueReader{client: mgr.GetClient(), queues: queues, refusals: no}); err != nil {
		return err
	}
	if o.Gangs {
		return setupGangs(mgr, o, k)
	}
	return nil
}

func (o *Options) tables(k kube.Applier, events *podstate.Warnings, keys *issuer.Source) *arrow.Engine {
	return &arrow.Engine{
		Applier: k, Server: workload.Server{Image: o.Image, Policy: o.Gate.ImagePullPolicy, Secrets: o.Gate.ImagePullSecrets, ObjectCacheURL: o.ObjectCacheURL, ObjectCacheCA: o.ObjectCacheCA, ClusterDomain: o.ClusterDomain, Traces: o.TracesEnv},
		Watchers: append([]networkingv1.NetworkPolicyPeer{workload.FromNamespaces(o.Namespace)}, o.MetricsFrom...),
		Heads:    heads.Client{Dial: o.Dial}, Warnings: events,
		Readers: o.Readers, NoAnyone: o.NoAnyone, Keys: keys, ObjectCacheCA: objectca.New(o.ObjectCacheCA, k.Live, o.Now), Now: o.Now,
	}
}

func (o *Options) files(mgr ctrl.Manager, k kube.Applier, events *podstate.Warnings, queues *queue.Queues) *fluid.Engine {
	return &fluid.Engine{
		Applier: k, Mapper: mgr.GetRESTMapper(), Gate: o.Gate, Warnings: events, Watches: &fluid.Watches{Cache: mgr.GetCache()}, Now: o.Now,
		Users: func(ctx context.Context, dc *v1alpha1.DataCache) ([]string, error) {
			return usersOf(ctx, k.Client, k.Live, queues, dc)
		},
		Off: o.StatusAddress == "",
	}
}

func addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	for _, index := range []struct {
		object client.Object
		name   string
		values client.IndexerFunc
	}{
		{&corev1.Pod{}, arrow.IndexCache, arrow.CacheNameOf},
		{&corev1.Pod{}, arrow.IndexMachine, arrow.MachineNameOf},
		{&corev1.Pod{}, indexStep, stepOfJob},
		{&corev1.Service{}, indexUses, cacheOfService},
		{&trainer.TrainJob{}, indexReference, referencesOf},
		{&trainer.TrainJob{}, indexRuntime, runtimeOf},
	} {
		if err := indexer.IndexField(ctx, index.object, index.name, index.values); err != nil {
			return fmt.Errorf("index %T by %s: %w", index.object, index.name, err)
		}
	}
	return nil
}

// setupCaches reconciles a DataCache when its spec or annotations, its objects or pods, or the phase or the quota of a job that uses it change. Fluid's
// objects are watched once a cache needs them. Steps that put datasets have a controller of their own. changed are DataCaches whose TrainJobs wait for something else.
func setupCaches(mgr ctrl.Manager, o Options, r *cacheReconciler, changed <-chan event.GenericEvent) error {
	spec := builder.WithPredicates(predicate.GenerationChangedPredicate{})
	controllers := ctrl.NewControllerManagedBy(mgr).Named("datacache").
		For(&v1alpha1.DataCache{}, builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, predicate.AnnotationChangedPredicate{}))).
		Owns(&lws.LeaderWorkerSet{}).
		Watches(&lws.LeaderWorkerSet{}, handler.EnqueueRequestsFromMapFunc(arrow.CachesOfOrphan)).
		Owns(&corev1.ConfigMap{}).
		Owns(&corev1.Service{}).
		Owns(&corev1.ServiceAccount{}).
		Owns(&networkingv1.NetworkPolicy{}, spec).
		Owns(&policyv1.PodDisruptionBudget{}, spec).
		Watches(&corev1.Pod{}, handler.EnqueueRequestsFromMapFunc(arrow.CachesOfPod)).
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(arrow.CachesOnMachine(mgr.GetClient())), builder.WithPredicates(arrow.ReadinessChanged)).
		Watches(&corev1.Service{}, handler.EnqueueRequestsFromMapFunc(usedCache)).
		Watches(&trainer.TrainJob{}, handler.EnqueueRequestsFromMapFunc(cachesOfJob(mgr.GetClient())), builder.WithPredicates(phaseChanged)).
		WatchesRawSource(ctrlsource.Channel(changed, &handler.EnqueueRequestForObject{})).
		WithOptions(ctrlcontroller.Options{MaxConcurrentReconciles: o.Workers})
	if r.queues != nil {
		controllers.Watches(queue.NewWorkload(), handler.EnqueueRequestsFromMapFunc(cachesOfWorkload(mgr.GetClient())))
	}
	built, err := controllers.Build(withTraces(o.Tracer, "DataCache", r))
	r.fluid.Watches.Controller = built
	return errors.Join(err, (&derive.Reconciler{Applier: r.Applier, Warnings: r.arrow.Warnings, Now: o.Now}).Setup(mgr))
}

// setupJobs reconciles a TrainJob when its phase, its quota, one of its Services, or a DataCache that it may use changes, or how that is trusted.
func setupJobs(mgr ctrl.Manager, o Options, r *jobReconciler) error {
	controllers := ctrl.NewControllerManagedBy(mgr).Named("datacache-trainjob").
		For(&trainer.TrainJob{}, builder.WithPredicates(phaseChanged)).
		Owns(&corev1.Service{}).
		Owns(&corev1.ConfigMap{}).
		Watches(&v1alpha1.DataCache{}, handler.EnqueueRequestsFromMapFunc(jobsOfCache(mgr.GetClient())),
			builder.WithPredicates(predicate.Or(predicate.GenerationChangedPredicate{}, trustChanged))).
		WithOptions(ctrlcontroller.Options{MaxConcurrentReconciles: max(1, o.Workers/2)})
	if r.queues != nil {
		controllers.Watches(queue.NewWorkload(), handler.EnqueueRequestsFromMapFunc(jobOfWorkload))
	}
	return controllers.Complete(withTraces(o.Tracer, trainer.TrainJobKind, reconcile.AsReconciler(mgr.GetClient(), r)))
}

// setupProgress reconciles a TrainJob when its phase or its Jobs' states change, or the state of a DataCache that it may use, and
// periodically while it waits.
func setupProgress(mgr ctrl.Manager, o Options, r *progressReconciler) error {
	return ctrl.NewControllerManagedBy(mgr).Named("datacache-progress").
		For(&trainer.TrainJob{}, builder.WithPredicates(progressChanged)).
		Watches(&v1alpha1.DataCache{}, handler.EnqueueRequestsFromMapFunc(jobsOfCache(mgr.GetClient())), builder.WithPredicates(stateChanged)).
		WithOptions(ctrlcontroller.Options{MaxConcurrentReconciles: max(1, o.Workers/2)}).
		Complete(r)
}

// setupNotices reconciles a waiting pod when it starts, when the status of the DataCache that it waits for changes, and periodically.
func setupNotices(mgr ctrl.Manager, o Options, r *noticeReconciler) error {
	return ctrl.NewControllerManagedBy(mgr).Named("datacache-notice").
		For(&corev1.Pod{}, builder.WithPredicates(predicate.NewPredicateFuncs(isStep))).
		Watches(&v1alpha1.DataCache{}, handler.EnqueueRequestsFromMapFunc(stepsOfCache(mgr.GetClient()))).
		WithOptions(ctrlcontroller.Options{MaxConcurrentReconciles: o.Workers}).
		Complete(r)
}

// setupTwins reconciles a source when it or its twin changes, or when a TrainJob that names the twin is deleted.
func setupTwins(mgr ctrl.Manager, o Options, r *twinReconciler) error {
	return ctrl.NewControllerManagedBy(mgr).Named("datacache-"+strings.ToLower(r.kind)).
		Watches(newRuntime(r.kind), handler.EnqueueRequestsFromMapFunc(sourceRequests)).
		Watches(&trainer.TrainJob{}, handler.EnqueueRequestsFromMapFunc(r.sourceOfJob), builder.WithPredicates(onlyDeleted)).
		Complete(withTraces(o.Tracer, r.kind, r))
}
