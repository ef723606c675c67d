// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kubeflow/datacache/internal/claim"
)

// Options are the platform's settings. QPS and Burst are required.
type Options struct {
	// QPS is how many claims per second are created in the whole cluster, on average.
	QPS float64
	// Burst is how many may be created at once after a pause; at least 1.
	Burst int
	// Registry is where the metrics are registered; nil: controller-runtime's, which the manager serves. Each registry can be used
	// once.
	Registry prometheus.Registerer
}

func (o *Options) complete() error {
	if !(o.QPS > 0) {
		return fmt.Errorf("--claim-qps: %g, want more than 0", o.QPS)
	}
	if o.Burst < 1 {
		return fmt.Errorf("--claim-burst: %d, want 1 or more", o.Burst)
	}
	if o.Registry == nil {
		o.Registry = ctrlmetrics.Registry
	}
	return nil
}

// Setup registers the worker with the manager, whose scheme must contain core/v1. It runs only on the leader. It has its own
// informers: gated pods and the claims that it created, in all namespaces, and nodes. SetupWebhook serves admission.
func Setup(mgr ctrl.Manager, o Options) error {
	if err := o.complete(); err != nil {
		return err
	}
	informers, err := newInformers(mgr)
	if err != nil {
		return err
	}
	w, err := newWorker(informers, mgr.GetClient(), mgr.GetAPIReader(), newEvents(mgr.GetEventRecorderFor("datacache")), o)
	if err != nil {
		return err
	}
	if err := mgr.Add(informers); err != nil {
		return fmt.Errorf("add the informers of scratch volumes: %w", err)
	}
	if err := mgr.Add(&leading{w, informers}); err != nil {
		return fmt.Errorf("add the worker of scratch volumes: %w", err)
	}
	return nil
}

func newWorker(cached client.Reader, live client.Client, reader client.Reader, v *events, o Options) (*worker, error) {
	limiter := rate.NewLimiter(rate.Limit(o.QPS), o.Burst)
	m, err := newMetrics(o.Registry, limiter)
	if err != nil {
		return nil, err
	}
	return &worker{
		cached: cached, live: uncached{live, reader}, owners: &owners{reader: reader}, limiter: limiter, events: v, metrics: m,
		queue: newQueue(), changed: make(chan struct{}, 1), inbox: map[types.NamespacedName]struct{}{},
		gone: map[types.NamespacedName]struct{}{},
	}, nil
}

// uncached is a manager's client that reads from the API server instead of the manager's informers.
type uncached struct {
	client.Client
	reader client.Reader
}

// Get reads an object from the API server.
func (u uncached) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	return u.reader.Get(ctx, key, object, options...)
}

// List reads objects from the API server.
func (u uncached) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	return u.reader.List(ctx, list, options...)
}

func newInformers(mgr ctrl.Manager) (cache.Cache, error) {
	ours, err := labels.Parse(claim.LabelVolume)
	if err != nil {
		return nil, fmt.Errorf("select claims: %w", err)
	}
	informers, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient:       mgr.GetHTTPClient(),
		Scheme:           mgr.GetScheme(),
		Mapper:           mgr.GetRESTMapper(),
		DefaultTransform: cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&corev1.Pod{}:                   {Label: labels.SelectorFromSet(labels.Set{claim.LabelState: claim.StateWaiting})},
			&corev1.PersistentVolumeClaim{}: {Label: ours},
			&corev1.Node{}:                  {Transform: stripNode},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("make the informers of scratch volumes: %w", err)
	}
	return informers, nil
}

// leading is the worker as a runnable of the manager.
type leading struct {
	worker    *worker
	informers cache.Cache
}

var _ manager.LeaderElectionRunnable = (*leading)(nil)

// Start runs the worker until ctx ends, after the informers have synced and the worker has been notified of all gated pods.
func (l *leading) Start(ctx context.Context) error {
	pods, err := l.informers.GetInformer(ctx, &corev1.Pod{})
	if err != nil {
		return fmt.Errorf("watch gated pods: %w", err)
	}
	claims, err := l.informers.GetInformer(ctx, &corev1.PersistentVolumeClaim{})
	if err != nil {
		return fmt.Errorf("watch claims: %w", err)
	}
	if _, err := l.informers.GetInformer(ctx, &corev1.Node{}); err != nil {
		return fmt.Errorf("watch nodes: %w", err)
	}
	registration, err := pods.AddEventHandler(toolscache.ResourceEventHandlerFuncs{
		AddFunc:    l.notice,
		UpdateFunc: func(_, pod any) { l.notice(pod) },
		DeleteFunc: l.notice,
	})
	if err != nil {
		return fmt.Errorf("watch gated pods: %w", err)
	}
	if _, err := claims.AddEventHandler(toolscache.ResourceEventHandlerFuncs{DeleteFunc: l.noticeGone}); err != nil {
		return fmt.Errorf("watch claims: %w", err)
	}
	defer func() { _ = pods.RemoveEventHandler(registration) }() // fails only if the informer has ended as well
	if !l.informers.WaitForCacheSync(ctx) || !toolscache.WaitForCacheSync(ctx.Done(), registration.HasSynced) {
		return errors.New("the informers of scratch volumes did not sync")
	}
	l.worker.run(ctx)
	return nil
}

// NeedLeaderElection returns true: a single worker enforces the rate.
func (l *leading) NeedLeaderElection() bool { return true }

func (l *leading) notice(object any) {
	key, err := toolscache.DeletionHandlingMetaNamespaceKeyFunc(object)
	if err != nil {
		return // not an object, which the informer never passes
	}
	namespace, name, err := toolscache.SplitMetaNamespaceKey(key)
	if err == nil {
		l.worker.notice(types.NamespacedName{Namespace: namespace, Name: name})
	}
}

func (l *leading) noticeGone(object any) {
	if last, ok := object.(toolscache.DeletedFinalStateUnknown); ok {
		object = last.Obj
	}
	if gone, ok := object.(*corev1.PersistentVolumeClaim); ok {
		l.worker.noticeGone(gone.Namespace, gone.Annotations[claim.AnnotationReplica])
	}
}
