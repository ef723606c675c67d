// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/podstate"
	"github.com/kubeflow/datacache/controller/queue"
	"github.com/kubeflow/datacache/internal/diagnose"
	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/runtimes"
	"github.com/kubeflow/datacache/internal/wellknown"
)

const (
	// defaultPatience is how long a TrainJob may take for its next step before it is asked why. The next look, and the next event if it finds
	// something else, follow after as long, later ones after twice as long each time, up to longestWait.
	defaultPatience = 10 * time.Second
	longestWait     = 2 * time.Minute
	// failedLately is how long after its failure a TrainJob is diagnosed: an earlier failure has its event.
	failedLately = time.Minute
)

// progressReconciler says what a TrainJob waits for when that is not its cache: in the words of internal/diagnose, as an event of the
// TrainJob and, through waits, in the condition Read of its DataCaches. It makes no request for a TrainJob that trains, or that waits for
// a cache, whose own condition and events say why.
type progressReconciler struct {
	client  client.Reader
	reader  client.Reader // for diagnoses
	events  *eventRecorder
	waits   *sentences
	changed chan event.GenericEvent // DataCaches whose status must say anew what their TrainJobs wait for
	now     func() time.Time
	// patience is how long a TrainJob may take for its next step.
	patience time.Duration

	looks sync.Map // what was found last, look by types.NamespacedName of the TrainJob
}

// look is the last look at a TrainJob that does not train.
type look struct {
	jobs  string        // its status.jobsStatus
	due   time.Time     // when to look next
	pause time.Duration // from that look to the next one

	said     string // the last event
	mayAgain time.Time
	sayPause time.Duration // after the next event
}

// Reconcile handles a TrainJob.
func (r *progressReconciler) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	job := &trainer.TrainJob{}
	if err := r.client.Get(ctx, req.NamespacedName, job); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(ctx, req.NamespacedName, nil)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, fmt.Errorf("get TrainJob %s: %w", req.NamespacedName, err)
	}
	failed := r.now().Sub(conditionSince(job, trainer.TrainJobFailed)) < failedLately
	if isElsewhere(job) || !failed && (phaseOf(job) == finished || phaseOf(job) == gone || trains(job)) {
		r.forget(ctx, req.NamespacedName, job)
		return ctrl.Result{}, nil
	}
	parsed := request.Read(job, job.Namespace)
	runtime, err := runtimes.Find(ctx, job.Namespace, parsed.Runtime, r.client)
	if err != nil || !parsed.Wants(runtime) {
		return ctrl.Result{}, err
	}
	last := look{sayPause: r.patience}
	if before, ok := r.looks.Load(req.NamespacedName); ok {
		last, _ = before.(look)
	}
	if jobs := fmt.Sprint(failed, jobsOf(job)); jobs != last.jobs {
		last.jobs, last.due, last.pause = jobs, r.now().Add(r.patience), r.patience
	}
	if failed {
		last.due = r.now() // its pods may go at once
	}
	if now := r.now(); now.Before(last.due) {
		r.looks.Store(req.NamespacedName, last)
		return ctrl.Result{RequeueAfter: last.due.Sub(now)}, nil
	}
	return r.diagnose(ctx, job, last)
}

// diagnose says what the job waits for.
func (r *progressReconciler) diagnose(ctx context.Context, job *trainer.TrainJob, last look) (ctrl.Result, error) {
	key := client.ObjectKeyFromObject(job)
	findings, err := diagnose.Why(ctx, r.reader, nil, key)
	if err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	cause := diagnose.Cause(findings)
	if cause != nil && strings.HasPrefix(cause.Subject, "DataCache ") { // whose next state causes another look
		r.forget(ctx, key, job)
		return ctrl.Result{}, nil
	}
	now, text := r.now(), ""
	if cause != nil {
		text = cause.String()
	}
	if text != "" && text != last.said && !now.Before(last.mayAgain) {
		ev := warning(EventWaits, "%s", text)
		if phaseOf(job) == suspended { // as its owner or a queue wants it
			ev.kind = corev1.EventTypeNormal
		}
		r.events.record(job, ev)
		last.said, last.mayAgain, last.sayPause = text, now.Add(last.sayPause), min(2*last.sayPause, longestWait)
	}
	r.say(ctx, key, job, text)
	if phaseOf(job) == finished {
		r.looks.Delete(key)
		return ctrl.Result{}, nil
	}
	last.due, last.pause = now.Add(last.pause), min(2*last.pause, longestWait)
	r.looks.Store(key, last)
	return ctrl.Result{RequeueAfter: last.due.Sub(now)}, nil
}

// forget must be called for a job that waits for nothing, or is gone and nil.
func (r *progressReconciler) forget(ctx context.Context, key types.NamespacedName, job *trainer.TrainJob) {
	r.looks.Delete(key)
	r.say(ctx, key, job, "")
}

// say lets the conditions of the job's caches say what it waits for.
func (r *progressReconciler) say(ctx context.Context, key types.NamespacedName, job *trainer.TrainJob, text string) {
	if phaseOf(job) != active {
		text = "" // it uses no cache
	}
	if r.waits.of(key) == text {
		return
	}
	r.waits.set(key, text)
	if job == nil {
		return
	}
	for _, request := range cachesOfJob(r.client)(ctx, job) {
		dc := &v1alpha1.DataCache{}
		dc.Namespace, dc.Name = request.Namespace, request.Name
		select {
		case r.changed <- event.GenericEvent{Object: dc}:
		case <-ctx.Done():
		}
	}
}

// trains reports whether all Jobs of a TrainJob run or have succeeded, and one runs.
func trains(job *trainer.TrainJob) bool {
	runs := false
	for _, s := range job.Status.JobsStatus {
		switch {
		case ptr.Deref(s.Failed, 0) > 0:
			return false
		case ptr.Deref(s.Ready, 0) > 0:
			runs = true
		case ptr.Deref(s.Succeeded, 0) == 0:
			return false
		}
	}
	return runs
}

// jobsOf describes the states of a TrainJob's Jobs.
func jobsOf(job *trainer.TrainJob) string {
	var text strings.Builder
	for _, s := range job.Status.JobsStatus {
		fmt.Fprint(&text, s.Name, " ", ptr.Deref(s.Active, 0), ptr.Deref(s.Ready, 0), ptr.Deref(s.Succeeded, 0), ptr.Deref(s.Failed, 0), " ")
	}
	return text.String()
}

// jobReader reads what diagnoses need with the rights that the manager has for other reasons: objects that informers have from these,
// Jobs one by one, as their JobSet names them, and Warning events at most once per warningsAge and namespace. What the manager may not
// read is forbidden without asking.
type jobReader struct {
	client   client.Reader // backed by informers
	live     client.Reader
	warnings *podstate.Warnings
	queues   *queue.Queues
}

// Get implements client.Reader.
func (r *jobReader) Get(ctx context.Context, key client.ObjectKey, object client.Object, options ...client.GetOption) error {
	switch object.(type) {
	case *trainer.TrainJob, *trainer.TrainingRuntime, *trainer.ClusterTrainingRuntime, *v1alpha1.DataCache, *corev1.Service:
		return r.client.Get(ctx, key, object, options...)
	}
	return r.live.Get(ctx, key, object, options...)
}

// List implements client.Reader.
func (r *jobReader) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	o := client.ListOptions{}
	o.ApplyOptions(options)
	switch list := list.(type) {
	case *corev1.PodList:
		return r.live.List(ctx, list, options...)
	case *corev1.EventList:
		events, err := r.warnings.Of(ctx, o.Namespace)
		list.Items = append(list.Items, events...)
		return err
	case *unstructured.UnstructuredList:
		if r.queues != nil && list.GetKind() == queue.NewWorkload().GetKind()+"List" {
			return r.queues.Reader.List(ctx, list, options...)
		}
	case *batchv1.JobList:
		name, _ := o.LabelSelector.RequiresExactMatch(wellknown.LabelJobSet)
		return r.jobs(ctx, types.NamespacedName{Namespace: o.Namespace, Name: name}, list)
	}
	return apierrors.NewForbidden(schema.GroupResource{}, "", fmt.Errorf("%T: the manager does not list them", list))
}

// jobs returns the Jobs that a JobSet has created.
func (r *jobReader) jobs(ctx context.Context, key types.NamespacedName, list *batchv1.JobList) error {
	set := &jobset.JobSet{}
	if err := r.live.Get(ctx, key, set); err != nil {
		return client.IgnoreNotFound(err)
	}
	for _, replicated := range set.Spec.ReplicatedJobs {
		for i := range replicated.Replicas {
			job := batchv1.Job{}
			err := r.live.Get(ctx, types.NamespacedName{Namespace: key.Namespace, Name: fmt.Sprintf("%s-%s-%d", set.Name, replicated.Name, i)}, &job)
			switch {
			case err == nil:
				list.Items = append(list.Items, job)
			case !apierrors.IsNotFound(err):
				return err
			}
		}
	}
	return nil
}
