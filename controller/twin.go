// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/internal/inject"
	"github.com/kubeflow/datacache/internal/request"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// annotationContent on a twin is the hash of the content with which it was created. Contents can't be compared directly, since the
// API server adds defaults.
const annotationContent = wellknown.Group + "/content"

// twinReconciler maintains, for every runtime of one kind that is not ours, a twin named <name>-data-cache that contains the waiting
// step. The step's settings are the platform's, the same for all twins.
type twinReconciler struct {
	kube.Applier
	kind   string // kind of the runtimes
	gate   inject.Gate
	events *eventRecorder
	// unedited maps the UID of each twin to the generation at which it was found to be unedited. Entries of deleted twins are not
	// removed.
	unedited sync.Map
}

// Reconcile takes the name of a source runtime, whether it exists or not.
func (r *twinReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	return kube.RequeueExpected(ctrl.Result{}, r.reconcile(ctx, request.NamespacedName))
}

func (r *twinReconciler) reconcile(ctx context.Context, key types.NamespacedName) error {
	source, err := r.find(ctx, key)
	if err != nil {
		return err
	}
	twin, err := r.find(ctx, types.NamespacedName{Namespace: key.Namespace, Name: wellknown.TwinName(key.Name)})
	if err != nil {
		return err
	}
	if twin != nil && twin.GetAnnotations()[wellknown.AnnotationTwinOf] != key.Name {
		return r.clash(source, twin)
	}
	if !wantsTwin(source) {
		r.events.forget(key)
		return r.remove(ctx, twin)
	}
	want, err := r.twinOf(source)
	if err != nil {
		r.events.recordOnce(source, warning(EventNoTwin, "TrainJobs with a data cache can't use this runtime: %v", err))
		return nil
	}
	return r.write(ctx, source, twin, want)
}

// wantsTwin is false for a runtime that is gone (nil), contains the waiting step, is itself a twin, or is labelled to have none.
func wantsTwin(source client.Object) bool {
	return source != nil && source.GetDeletionTimestamp() == nil &&
		source.GetLabels()[wellknown.LabelDerive] != "false" &&
		source.GetAnnotations()[wellknown.AnnotationTwinOf] == "" &&
		!request.HasGate(source.GetLabels(), specOf(source))
}

// twinOf returns the twin as it should be. It has no owner reference to its source: it must not be deleted while TrainJobs name it,
// because the Kubeflow SDK fails to list a namespace with a TrainJob whose runtime does not exist.
func (r *twinReconciler) twinOf(source client.Object) (client.Object, error) {
	spec, err := inject.Twin(specOf(source), r.gate)
	if err != nil {
		return nil, err
	}
	twin := newRuntime(r.kind)
	twin.SetName(wellknown.TwinName(source.GetName()))
	twin.SetNamespace(source.GetNamespace())
	twin.SetLabels(twinLabels(source.GetLabels()))
	*specOf(twin) = *spec
	hash, err := contentHash(twin.GetLabels(), spec)
	if err != nil {
		return nil, err
	}
	twin.SetAnnotations(map[string]string{wellknown.AnnotationTwinOf: source.GetName(), annotationContent: hash})
	return twin, nil
}

// trackers are the prefixes of labels by which deployment tools recognize what they applied: if a twin had them, the tools would
// prune it.
var trackers = []string{"argocd.argoproj.io/", "kustomize.toolkit.fluxcd.io/", "helm.toolkit.fluxcd.io/", "app.kubernetes.io/instance", "helm.sh/"}

func twinLabels(source map[string]string) map[string]string {
	labels := inject.TwinLabels(source)
	maps.DeleteFunc(labels, func(name, _ string) bool {
		return slices.ContainsFunc(trackers, func(tracker string) bool { return strings.HasPrefix(name, tracker) })
	})
	labels[wellknown.LabelManagedBy] = wellknown.ManagedBy
	return labels
}

func contentHash(labels map[string]string, spec *trainer.TrainingRuntimeSpec) (string, error) {
	text, err := json.Marshal([]any{labels, spec})
	if err != nil {
		return "", fmt.Errorf("write runtime as JSON: %w", err)
	}
	sum := sha256.Sum256(text)
	return hex.EncodeToString(sum[:16]), nil
}

// write creates or updates the twin.
func (r *twinReconciler) write(ctx context.Context, source, have, want client.Object) error {
	if have != nil && r.isUnedited(have) && have.GetAnnotations()[annotationContent] == want.GetAnnotations()[annotationContent] && len(have.GetOwnerReferences()) > 0 {
		return nil
	}
	owner, err := r.installation(ctx)
	if err != nil {
		return err
	}
	want.SetOwnerReferences([]metav1.OwnerReference{owner})
	if have == nil {
		err = r.Client.Create(ctx, want)
	} else {
		err = r.update(ctx, have, want)
	}
	if apierrors.IsAlreadyExists(err) {
		return nil // created a moment ago, by us or not: its event triggers another reconciliation
	}
	if isRefused(err) {
		r.events.recordOnce(source, warning(EventNoTwin, "the API server refuses %s: %v", want.GetName(), err))
	}
	if isFinal(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("write %s %s: %w", r.kind, kube.Qualified(want), err)
	}
	r.events.forget(client.ObjectKeyFromObject(source))
	return nil
}

// installation is the owner of all twins: the CRD of DataCaches. When that is removed, datacache is uninstalled, and the garbage
// collector removes the twins, even if no manager is running any more.
func (r *twinReconciler) installation(ctx context.Context) (metav1.OwnerReference, error) {
	crd := &metav1.PartialObjectMetadata{}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	if err := r.Live.Get(ctx, client.ObjectKey{Name: "datacaches." + wellknown.Group}, crd); err != nil {
		return metav1.OwnerReference{}, fmt.Errorf("get the CRD of DataCaches, which owns twins: %w", err)
	}
	apiVersion, kind := crd.GroupVersionKind().ToAPIVersionAndKind()
	return metav1.OwnerReference{APIVersion: apiVersion, Kind: kind, Name: crd.Name, UID: crd.UID}, nil
}

// update restores a twin whose source changed or that somebody edited.
func (r *twinReconciler) update(ctx context.Context, have, want client.Object) error {
	annotations := maps.Clone(have.GetAnnotations())
	maps.Copy(annotations, want.GetAnnotations())
	want.SetAnnotations(annotations)
	want.SetResourceVersion(have.GetResourceVersion())
	if have.GetAnnotations()[annotationContent] == annotations[annotationContent] && len(have.GetOwnerReferences()) > 0 {
		edited, err := r.isEdited(ctx, have, want)
		if err != nil || !edited {
			return err
		}
	}
	return r.Client.Update(ctx, want)
}

// isUnedited reports whether isEdited returned false for this generation of the twin, so that the API server need not be asked again.
func (r *twinReconciler) isUnedited(have client.Object) bool {
	known, ok := r.unedited.Load(have.GetUID())
	return ok && known == have.GetGeneration()
}

// isEdited reports whether the twin differs from the wanted one with the API server's defaults.
func (r *twinReconciler) isEdited(ctx context.Context, have, want client.Object) (bool, error) {
	defaulted, _ := want.DeepCopyObject().(client.Object) // DeepCopyObject returns the same type
	if err := r.Client.Update(ctx, defaulted, client.DryRunAll); err != nil {
		return false, err
	}
	if !equality.Semantic.DeepEqual(specOf(defaulted), specOf(have)) {
		return true, nil
	}
	r.unedited.Store(have.GetUID(), have.GetGeneration())
	return false, nil
}

// isFinal reports whether an error must be fixed by the runtime's owner, so that a retry is useless: rejections by validation and
// webhooks.
func isFinal(err error) bool {
	return apierrors.IsInvalid(err) || err != nil && strings.Contains(err.Error(), "denied the request") // k8s.io/apiserver webhook/errors/statuserror.go
}

// clash records on the source that its twin's name is taken.
func (r *twinReconciler) clash(source, other client.Object) error {
	if wantsTwin(source) {
		r.events.recordOnce(source, warning(EventTwinTaken, "runtime %s exists and is not this one's twin: TrainJobs with a data cache can't use this runtime; rename either", other.GetName()))
	}
	return nil
}

// remove deletes a twin that is not needed any more. It waits while a TrainJob names the twin.
func (r *twinReconciler) remove(ctx context.Context, twin client.Object) error {
	if twin == nil || twin.GetDeletionTimestamp() != nil {
		return nil
	}
	var jobs trainer.TrainJobList
	options := []client.ListOption{client.MatchingFields{indexRuntime: r.kind + "/" + twin.GetName()}, client.Limit(1)}
	if twin.GetNamespace() != "" {
		options = append(options, client.InNamespace(twin.GetNamespace()))
	}
	if err := r.Client.List(ctx, &jobs, options...); err != nil {
		return fmt.Errorf("list TrainJobs that name runtime %s: %w", twin.GetName(), err)
	}
	if len(jobs.Items) > 0 {
		return nil
	}
	uid := twin.GetUID()
	if err := client.IgnoreNotFound(r.Client.Delete(ctx, twin, client.Preconditions{UID: &uid})); err != nil {
		return fmt.Errorf("delete %s %s: %w", r.kind, kube.Qualified(twin), err)
	}
	return nil
}

// find returns a runtime; nil if there is none.
func (r *twinReconciler) find(ctx context.Context, key types.NamespacedName) (client.Object, error) {
	runtime := newRuntime(r.kind)
	err := r.Client.Get(ctx, key, runtime)
	if apierrors.IsNotFound(err) {
		return nil, nil // not found is not an error
	}
	if err != nil {
		return nil, fmt.Errorf("get %s %s: %w", r.kind, key, err)
	}
	return runtime, nil
}

// newRuntime returns an empty runtime of the kind; nil for a kind that Trainer does not have.
func newRuntime(kind string) client.Object {
	switch kind {
	case trainer.ClusterTrainingRuntimeKind:
		return &trainer.ClusterTrainingRuntime{}
	case trainer.TrainingRuntimeKind:
		return &trainer.TrainingRuntime{}
	}
	return nil
}

// specOf returns a pointer to a runtime's spec; an empty one for another object.
func specOf(runtime client.Object) *trainer.TrainingRuntimeSpec {
	switch runtime := runtime.(type) {
	case *trainer.ClusterTrainingRuntime:
		return &runtime.Spec
	case *trainer.TrainingRuntime:
		return &runtime.Spec
	}
	return &trainer.TrainingRuntimeSpec{}
}

// runtimeOf indexes TrainJobs by the runtime that they name.
func runtimeOf(object client.Object) []string {
	job, ok := object.(*trainer.TrainJob)
	if !ok {
		return nil
	}
	ref := request.RuntimeRef(job.Spec.RuntimeRef)
	return []string{*ref.Kind + "/" + ref.Name}
}
