// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package diagnose finds out what a TrainJob with a cache waits for. It reads only what a user who may view the namespace can read, and
// says what it may not read.
package diagnose

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/runtimes"
	"github.com/kubeflow/datacache/internal/view"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// Finding is what was found at one step of the way from a TrainJob to its rows.
type Finding struct {
	Subject string `json:"subject"`       // what was looked at: "TrainJob team/train", "DataCache team/train", ...
	State   string `json:"state"`         // its state in words
	Blocks  bool   `json:"blocks"`        // whether the TrainJob waits or fails because of it
	Unseen  bool   `json:"unseen"`        // whether it could not be looked at, so that it may block
	Fix     string `json:"fix,omitempty"` // what to do about it; "" if it does not block, or if waiting is all that there is to do
}

// Log returns the last lines of a container's log, and the whole of it if lines is 0.
type Log func(ctx context.Context, pod types.NamespacedName, container string, lines int64) (string, error)

// Why looks at a TrainJob, its runtime, its caches, its Jobs, the step that waits for the caches and the training pods, in the order in which
// they depend on each other. It ends after the first that blocks; if the TrainJob has failed, after the first that may be the cause. Of several caches, more than one may block. log may be nil: then none is
// read. The error is that of the API server.
func Why(ctx context.Context, reader client.Reader, log Log, key types.NamespacedName) ([]Finding, error) {
	job := &trainer.TrainJob{}
	if err := reader.Get(ctx, key, job); err != nil {
		return nil, fmt.Errorf("get TrainJob %s: %w", key, err)
	}
	w := &walk{reader: reader, log: log, job: job}
	steps := []func(context.Context) ([]Finding, error){one(w.trainJob), one(w.runtime), w.caches, one(w.jobs), one(w.step), one(w.pods)}
	var findings []Finding
	for i, step := range steps {
		found, err := step(ctx)
		if err != nil {
			return findings, err
		}
		findings = append(findings, found...)
		if w.done || Blocked(found) && (i > 0 || !w.failed && !w.loads) {
			break
		}
	}
	return findings, nil
}

// Blocked reports whether one of the findings blocks.
func Blocked(findings []Finding) bool { return Cause(findings) != nil }

// Cause returns the last finding that blocks, which is the nearest to the cause; nil if nothing does.
func Cause(findings []Finding) *Finding {
	for i := range slices.Backward(findings) {
		if findings[i].Blocks {
			return &findings[i]
		}
	}
	return nil
}

// String is the finding in one sentence, with what to do.
func (f *Finding) String() string {
	text := f.Subject + ": " + f.State
	if f.Fix != "" {
		text += "; fix: " + f.Fix
	}
	return text
}

// one makes a step of one that has a single finding.
func one(step func(context.Context) (Finding, error)) func(context.Context) ([]Finding, error) {
	return func(ctx context.Context) ([]Finding, error) {
		finding, err := step(ctx)
		return []Finding{finding}, err
	}
}

// walk is the state of one diagnosis.
type walk struct {
	reader  client.Reader
	log     Log // nil: logs can't be read
	job     *trainer.TrainJob
	failed  bool   // the TrainJob has failed
	loads   bool   // Kueue has reserved the TrainJob's quota and waits for its caches
	done    bool   // the remaining steps do not apply
	notRead string // why no rank reads the caches; "" if ranks do, or if that is not known
}

func (w *walk) trainJob(ctx context.Context) (Finding, error) {
	f := Finding{Subject: "TrainJob " + client.ObjectKeyFromObject(w.job).String(), State: "active"}
	switch {
	case w.job.DeletionTimestamp != nil:
		f.State, w.done = "is being deleted", true
	case meta.IsStatusConditionTrue(w.job.Status.Conditions, trainer.TrainJobComplete):
		f.State, w.done = "complete", true
	case meta.IsStatusConditionTrue(w.job.Status.Conditions, trainer.TrainJobFailed):
		f.State, f.Blocks, w.failed = "failed: "+meta.FindStatusCondition(w.job.Status.Conditions, trainer.TrainJobFailed).Message, true, true
	case ptr.Deref(w.job.Spec.Suspend, false):
		return w.suspended(ctx, f)
	}
	return f, nil
}

// runtime checks that the TrainJob asks for a cache and was admitted by datacache's webhook.
func (w *walk) runtime(ctx context.Context) (Finding, error) {
	parsed := request.Read(w.job, w.job.Namespace)
	ref := parsed.Runtime
	f := Finding{Subject: *ref.Kind + " " + ref.Name}
	runtime, err := runtimes.Find(ctx, w.job.Namespace, ref, w.reader)
	switch {
	case apierrors.IsForbidden(err):
		f.State, f.Unseen = "you may not read it", true
	case err != nil:
		return f, err
	case runtime == nil:
		f.State, f.Blocks, f.Fix = "does not exist", true, "name one of `kubectl get clustertrainingruntimes` and create the TrainJob anew"
	case !parsed.Wants(runtime):
		f.State, w.done = "the TrainJob asks for no cache", true
	case !request.HasGate(runtime.Labels, runtime.Spec):
		f.State, f.Blocks = "has no step that waits for a cache: the TrainJob was created while datacache's webhook was not installed", true
		f.Fix = "create the TrainJob anew when `kubectl get mutatingwebhookconfigurations " + wellknown.Group + "` finds it"
	default:
		f.State = "has a step that waits for the cache"
	}
	return f, nil
}

// caches checks the DataCaches that the TrainJob uses.
func (w *walk) caches(ctx context.Context) ([]Finding, error) {
	keys, err := w.uses(ctx)
	if err != nil {
		return nil, err
	}
	w.done = w.done || w.loads // nothing else exists yet
	var findings []Finding
	for _, key := range keys {
		f, err := w.cache(ctx, key)
		if err != nil {
			return findings, err
		}
		findings = append(findings, f)
	}
	return findings, nil
}

// cache checks a DataCache.
func (w *walk) cache(ctx context.Context, key types.NamespacedName) (Finding, error) {
	f := Finding{Subject: "DataCache " + key.String()}
	dc := &v1alpha1.DataCache{}
	err := w.reader.Get(ctx, key, dc)
	switch {
	case apierrors.IsNotFound(err):
		return w.noCache(ctx, f)
	case apierrors.IsForbidden(err):
		f.State, f.Unseen = "you may not read it; the TrainJob's events say what it waits for", true
		return f, nil
	case err != nil:
		return f, fmt.Errorf("get DataCache %s: %w", key, err)
	}
	ready := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil {
		return w.unmanaged(ctx, f)
	}
	f.State = fmt.Sprintf("%s: %s: %s", dc.Status.State, ready.Reason, ready.Message)
	if last := dc.Status.LastFailure; last != nil && dc.Status.State != v1alpha1.StateFailed {
		f.State += "; it failed before: " + last.Message
	}
	if keys := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionTokensUnverifiable); keys != nil {
		f.State += "; it may refuse its readers, " + keys.Type + ": " + keys.Message
	}
	read := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionRead)
	switch {
	case read == nil || w.failed:
	case read.Reason == v1alpha1.ReasonRanksWait:
		f.State, f.Blocks, f.Fix = fmt.Sprintf("%s: %s: %s", dc.Status.State, read.Reason, read.Message), true, fixes[read.Reason]
	case read.Reason == v1alpha1.ReasonNotRead:
		w.notRead += "; DataCache " + dc.Name + ": " + read.Message
	}
	released := w.failed && dc.Status.State == v1alpha1.StateReleased // because the TrainJob ended
	if (ready.Status != metav1.ConditionTrue || dc.Status.State == v1alpha1.StateDegraded) && !released {
		f.Blocks, f.Fix = true, fixes[ready.Reason]
		if (ready.Reason == "Planning" || ready.Reason == "LoadFailed") && unreachable.MatchString(ready.Message) {
			f.Fix = fixes["endpoint"]
		}
	}
	w.derives(dc, &f)
	return f, nil
}

// derives adds to what is said of a DataCache that the step goes on, or has failed, that makes the dataset that the TrainJob reads.
func (w *walk) derives(dc *v1alpha1.DataCache, f *Finding) {
	derived := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionDerived)
	if derived == nil || derived.Status == metav1.ConditionTrue || f.Blocks || dc.Spec.Arrow == nil || dc.Spec.Arrow.Derive == nil {
		return
	}
	for _, r := range request.Read(w.job, w.job.Namespace).References {
		if r.Key == client.ObjectKeyFromObject(dc) && r.Dataset == dc.Spec.Arrow.Derive.Dataset {
			f.State, f.Blocks = fmt.Sprintf("%s: %s: %s", dc.Status.State, derived.Reason, derived.Message), true
			f.Fix = strings.ReplaceAll(fixes[derived.Reason], "<DataCache>", dc.Name)
		}
	}
}

// unreachable matches messages of planning that does not reach the store or the catalog.
var unreachable = regexp.MustCompile(`dial tcp|no such host|connection refused|i/o timeout|no route to host|tls: |x509: `)

// uses returns the DataCaches that the TrainJob uses: those that it names if there are several, otherwise the one that its Service records,
// or its own.
func (w *walk) uses(ctx context.Context) ([]types.NamespacedName, error) {
	if uses := request.Read(w.job, w.job.Namespace).Uses(); len(uses) > 1 {
		var keys []types.NamespacedName
		for _, use := range uses[1:] {
			keys = append(keys, use.Key)
		}
		return keys, nil
	}
	own := client.ObjectKeyFromObject(w.job)
	service := &corev1.Service{}
	err := w.reader.Get(ctx, types.NamespacedName{Namespace: own.Namespace, Name: wellknown.ServiceName(own.Name)}, service)
	if err != nil {
		if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
			return []types.NamespacedName{own}, nil
		}
		return nil, fmt.Errorf("get the Service of TrainJob %s: %w", own, err)
	}
	if namespace, name, found := strings.Cut(service.Annotations[wellknown.AnnotationUses], "/"); found {
		return []types.NamespacedName{{Namespace: namespace, Name: name}}, nil
	}
	return []types.NamespacedName{own}, nil
}

// noCache says why the manager has made no DataCache.
func (w *walk) noCache(ctx context.Context, f Finding) (Finding, error) {
	message, err := w.warning(ctx, w.job, func(reason string) bool { return strings.HasPrefix(reason, "Cache") })
	if err != nil {
		return f, err
	}
	if message == "" {
		return w.unmanaged(ctx, f)
	}
	f.State, f.Blocks, f.Fix = message, true, "as the message says; it is tried again every 10 s"
	return f, nil
}

// unmanaged is the finding for a cache without a status: no manager has reconciled it.
func (w *walk) unmanaged(ctx context.Context, f Finding) (Finding, error) {
	f.State, f.Blocks = view.Unseen, true
	f.Fix = "wait some seconds; then ask who runs datacache to look at its manager's pods"
	var managers appsv1.DeploymentList
	err := w.reader.List(ctx, &managers, client.MatchingLabels{"app.kubernetes.io/name": "datacache-manager"})
	switch {
	case apierrors.IsForbidden(err):
	case err != nil:
		return f, fmt.Errorf("list the Deployments of datacache's manager: %w", err)
	case len(managers.Items) == 1 && managers.Items[0].Status.AvailableReplicas == 0:
		name := client.ObjectKeyFromObject(&managers.Items[0])
		f.State += fmt.Sprintf(": none of the %d replicas of Deployment %s is available", ptr.Deref(managers.Items[0].Spec.Replicas, 1), name)
		f.Fix = fmt.Sprintf("kubectl -n %s describe pods -l app.kubernetes.io/name=datacache-manager", name.Namespace)
	}
	return f, nil
}
