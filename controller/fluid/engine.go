// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fluid runs caches of files with Fluid. Nothing else depends on Fluid but the types that the manager registers.
package fluid

import (
	"context"
	"fmt"
	"time"

	fluid "github.com/fluid-cloudnative/fluid/api/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/engine"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/controller/podstate"
	"github.com/kubeflow/datacache/internal/admit"
	"github.com/kubeflow/datacache/internal/inject"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// Engine caches files with Fluid: a Dataset with a runtime, for which Fluid makes a claim of the DataCache's name. All reads
// go to the API server: no informer can exist for kinds that may be missing, and a claim must never be called usable because an informer has
// not yet seen that its Dataset is being deleted. All fields are required but Off. It is safe for concurrent use.
type Engine struct {
	kube.Applier
	Mapper   meta.RESTMapper
	Gate     inject.Gate // image of the probe
	Warnings *podstate.Warnings
	Watches  *Watches
	Users    func(ctx context.Context, dc *v1alpha1.DataCache) ([]string, error) // TrainJobs that use the cache now, as <namespace>/<name>
	Now      func() time.Time
	Off      bool // the manager has no rights to Fluid's kinds (component fluid): nothing is read or made
}

var _ engine.Engine = (*Engine)(nil)

// MissingError says that Fluid is not installed, or not that kind of runtime; without a kind, that the component fluid is not.
type MissingError struct{ kind string }

func (e *MissingError) Error() string {
	if e.kind == "" {
		return admit.FilesOff
	}
	return admit.MissingText(e.kind)
}

// Describe implements engine.Engine.
func (*Engine) Describe(dc *v1alpha1.DataCache) (parts, data string) {
	return fmt.Sprintf("a Dataset and a %s of Fluid", runtimeKind(dc.Spec.Fluid.Runtime.Kind)), locations(dc.Spec.Fluid)
}

// Provision creates the Dataset first, so that it can own the runtime: Fluid binds the two when both exist. Nothing is updated later but the
// number of workers.
func (e *Engine) Provision(ctx context.Context, dc *v1alpha1.DataCache) error {
	if e.Off {
		return &MissingError{}
	}
	kind, err := admit.MissingKind(e.Mapper, dc.Spec.Fluid)
	if err != nil {
		return err
	}
	if kind != "" {
		return &MissingError{kind}
	}
	if err := e.Watches.start(dc.Spec.Fluid); err != nil {
		return err
	}
	set, err := e.provideDataset(ctx, dc)
	if err != nil || set.DeletionTimestamp != nil {
		return err // the deletion triggers another reconcile
	}
	if err := e.provideRuntime(ctx, dc, set); err != nil {
		return err
	}
	if set.Status.Phase != fluid.BoundDatasetPhase {
		return nil
	}
	if !wasReady(dc, set) {
		if err := e.provideProbe(ctx, dc, set); err != nil {
			return err
		}
	}
	if !dc.Spec.Fluid.WarmUp {
		return nil
	}
	return e.provideLoad(ctx, dc, set)
}

// provideDataset returns the cache's Dataset, which it creates if nothing in the cluster has the names that Fluid would use.
func (e *Engine) provideDataset(ctx context.Context, dc *v1alpha1.DataCache) (*fluid.Dataset, error) {
	want := dataset(dc)
	have, err := find(ctx, e.Live, &fluid.Dataset{}, dc.Namespace, dc.Name)
	if err != nil {
		return nil, err
	}
	if have == nil {
		if err := e.namesAreFree(ctx, dc); err != nil {
			return nil, err
		}
		return want, e.create(ctx, want)
	}
	if have.DeletionTimestamp == nil || !isOurs(have, dc.Name) {
		err = kube.Foreign("Dataset", have, want)
	}
	return have, err
}

// namesAreFree returns an error if an object exists that Fluid would take for the Dataset's: a runtime of any kind, a claim, or a volume.
func (e *Engine) namesAreFree(ctx context.Context, dc *v1alpha1.DataCache) error {
	for _, kind := range fluidKindsKnown {
		other, err := find(ctx, e.Live, newFluidRuntime(kind), dc.Namespace, dc.Name)
		if err != nil {
			return err
		}
		if other != nil {
			return leftover(runtimeKind(kind), other, isOurs(other, dc.Name))
		}
	}
	claim, err := find(ctx, e.Live, &corev1.PersistentVolumeClaim{}, dc.Namespace, dc.Name)
	if err != nil {
		return err
	}
	if claim != nil {
		return leftover("PersistentVolumeClaim", claim, claim.Annotations[annotationCreatedBy] == createdByFluid)
	}
	volume, err := find(ctx, e.Live, &corev1.PersistentVolume{}, "", volumeName(dc))
	if err != nil || volume == nil {
		return err
	}
	return leftover("PersistentVolume", volume, isClaimOf(volume, dc) && volume.Annotations[annotationCreatedBy] == createdByFluid)
}

// leftover is the error for an object in the way: of an earlier Dataset, which will be deleted, or of somebody else.
func leftover(kind string, object client.Object, earlier bool) error {
	if earlier {
		return fmt.Errorf("%s %s: %w", kind, object.GetName(), kube.ErrGoing)
	}
	return &kube.ForeignError{Kind: kind, Name: kube.Qualified(object), Owner: "nobody that datacache knows"}
}

// isOurs reports whether an object was made for a DataCache of this name, maybe an earlier one.
func isOurs(object client.Object, cache string) bool {
	labels := object.GetLabels()
	return labels[wellknown.LabelManagedBy] == wellknown.ManagedBy && labels[wellknown.LabelCache] == cache
}

func (e *Engine) provideRuntime(ctx context.Context, dc *v1alpha1.DataCache, set *fluid.Dataset) error {
	kind := runtimeKind(dc.Spec.Fluid.Runtime.Kind)
	have, err := find(ctx, e.Live, newFluidRuntime(dc.Spec.Fluid.Runtime.Kind), dc.Namespace, dc.Name)
	if err != nil {
		return err
	}
	if have == nil {
		return e.create(ctx, runtimeOfCache(dc, set))
	}
	if !belongsTo(have, set) {
		return leftover(kind, have, isOurs(have, dc.Name))
	}
	if have.Replicas() == dc.Spec.Fluid.Runtime.Replicas || have.GetDeletionTimestamp() != nil {
		return nil
	}
	before, _ := have.DeepCopyObject().(fluidRuntime) // DeepCopyObject returns the same type
	setReplicas(have, dc.Spec.Fluid.Runtime.Replicas)
	if err := e.Client.Patch(ctx, have, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return e.Failed("patch", have, err)
	}
	return nil
}

func (e *Engine) provideLoad(ctx context.Context, dc *v1alpha1.DataCache, set *fluid.Dataset) error {
	have, err := find(ctx, e.Live, &fluid.DataLoad{}, dc.Namespace, warmUpName(dc))
	if err != nil {
		return err
	}
	if have == nil {
		return e.create(ctx, dataLoad(dc, set))
	}
	if !belongsTo(have, set) {
		return leftover("DataLoad", have, isOurs(have, dc.Name))
	}
	return nil
}

// create creates an object that did not exist a moment ago.
func (e *Engine) create(ctx context.Context, object client.Object) error {
	err := e.Client.Create(ctx, object)
	switch {
	case apierrors.IsAlreadyExists(err):
		return fmt.Errorf("%s %s: %w", e.Kind(object), kube.Qualified(object), kube.ErrGoing) // it makes the controller try again
	case apierrors.IsNotFound(err) && !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause):
		return &MissingError{e.Kind(object)} // its CRD was removed
	case err != nil:
		return e.Failed("create", object, err)
	}
	return nil
}

// find returns an object as the API server has it; the zero value if it does not exist, or its kind doesn't.
func find[T client.Object](ctx context.Context, live client.Reader, object T, namespace, name string) (T, error) {
	var none T
	err := live.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, object)
	if apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return none, nil
	}
	if err != nil {
		return none, fmt.Errorf("get %T %s/%s: %w", object, namespace, name, err)
	}
	return object, nil
}

// Observe reads the Dataset and, depending on how far it is, what explains its state.
func (e *Engine) Observe(ctx context.Context, dc *v1alpha1.DataCache) (engine.Observation, error) {
	out := engine.Observation{ClaimName: dc.Name}
	if e.Off {
		return out, nil
	}
	set, err := find(ctx, e.Live, &fluid.Dataset{}, dc.Namespace, dc.Name)
	if err != nil || set == nil {
		return out, err
	}
	leaving := set.DeletionTimestamp != nil
	if earlier := leaving && isOurs(set, dc.Name); !earlier && !metav1.IsControlledBy(set, dc) {
		return out, nil // not made for this DataCache
	}
	out.Exists, out.Leaving, out.Created = true, leaving, set.CreationTimestamp
	if leaving {
		return out, nil
	}
	f := &fluidFacts{now: e.Now(), cache: dc, dataset: set}
	if err := e.gather(ctx, f); err != nil {
		return out, err
	}
	out.Condition, out.Percent = conditionOfFluid(f), f.percent()
	out.AwaitsEvent = set.Status.Phase != fluid.BoundDatasetPhase // Datasets are watched, claims are not
	if f.runtime != nil {
		out.Replicas, out.ReadyReplicas = dc.Spec.Fluid.Runtime.Replicas, f.runtime.GetStatus().WorkerNumberReady
	}
	return out, nil
}

// gather reads the objects around the Dataset. Pods and events are read only where something is missing, and whatever may keep a Dataset from
// being bound only if it is not after fluidPatience.
func (e *Engine) gather(ctx context.Context, f *fluidFacts) (err error) {
	dc := f.cache
	if f.runtime, err = find(ctx, e.Live, newFluidRuntime(dc.Spec.Fluid.Runtime.Kind), dc.Namespace, dc.Name); err != nil {
		return err
	}
	if f.dataset.Status.Phase != fluid.BoundDatasetPhase && f.age() < fluidPatience {
		return nil
	}
	if f.claim, err = find(ctx, e.Live, &corev1.PersistentVolumeClaim{}, dc.Namespace, dc.Name); err != nil {
		return err
	}
	if f.volume, err = find(ctx, e.Live, &corev1.PersistentVolume{}, "", volumeName(dc)); err != nil {
		return err
	}
	if dc.Spec.Fluid.WarmUp {
		load, err := find(ctx, e.Live, &fluid.DataLoad{}, dc.Namespace, warmUpName(dc))
		if err != nil {
			return err
		}
		if load != nil && belongsTo(load, f.dataset) {
			f.load = load
		}
	}
	if !wasReady(dc, f.dataset) {
		probe, err := find(ctx, e.Live, &batchv1.Job{}, dc.Namespace, probeName(dc))
		if err != nil {
			return err
		}
		if probe != nil && belongsTo(probe, f.dataset) {
			f.probe = probe
		}
	}
	if conditionOfFluid(f).State == v1alpha1.StateReady && f.runtime.GetStatus().FuseNumberUnavailable == 0 {
		return nil
	}
	if f.pods, err = e.podsWith(ctx, dc, client.MatchingLabels{labelRelease: dc.Name}); err != nil {
		return err
	}
	if f.probe != nil {
		if f.probes, err = e.podsWith(ctx, dc, kube.PodsOf(dc, roleProbe)); err != nil {
			return err
		}
	}
	f.warnings, err = e.Warnings.Of(ctx, dc.Namespace)
	return err
}

func (e *Engine) podsWith(ctx context.Context, dc *v1alpha1.DataCache, labels client.MatchingLabels) ([]*corev1.Pod, error) {
	var list corev1.PodList
	if err := e.Live.List(ctx, &list, client.InNamespace(dc.Namespace), labels); err != nil {
		return nil, fmt.Errorf("list the pods of Dataset %s: %w", kube.Qualified(dc), err)
	}
	pods := make([]*corev1.Pod, 0, len(list.Items))
	for i := range list.Items {
		pods = append(pods, &list.Items[i])
	}
	return pods, nil
}

// Release deletes the probe and the Dataset, and nothing else: Fluid deletes the rest in the right order, when no pod mounts the files any more.
func (e *Engine) Release(ctx context.Context, dc *v1alpha1.DataCache) error {
	if e.Off {
		return nil
	}
	set, err := find(ctx, e.Live, &fluid.Dataset{}, dc.Namespace, dc.Name)
	if err != nil || set == nil || !metav1.IsControlledBy(set, dc) {
		return err
	}
	if err := e.releaseProbe(ctx, dc.Namespace, dc.Name); err != nil {
		return err
	}
	return e.deleteDataset(ctx, set)
}

// ReleaseOrphan deletes the probe of a DataCache that was deleted, which would keep the Dataset while its pod waits, and the Dataset if the
// DataCache was deleted with --cascade=orphan. Where no cache has needed Fluid yet, it does not look: the event of an orphan arrives when the
// Watches start.
func (e *Engine) ReleaseOrphan(ctx context.Context, cache types.NamespacedName) error {
	if !e.Watches.any() {
		return nil
	}
	set, err := find(ctx, e.Live, &fluid.Dataset{}, cache.Namespace, cache.Name)
	if err != nil || set == nil || !isOurs(set, cache.Name) {
		return err
	}
	if err := e.releaseProbe(ctx, cache.Namespace, cache.Name); err != nil || len(set.OwnerReferences) > 0 {
		return err
	}
	return e.deleteDataset(ctx, set)
}

func (e *Engine) deleteDataset(ctx context.Context, set *fluid.Dataset) error {
	if set.DeletionTimestamp != nil {
		return nil
	}
	err := e.Client.Delete(ctx, set, client.Preconditions{UID: new(set.UID)})
	if client.IgnoreNotFound(err) != nil {
		return e.Failed("delete", set, err)
	}
	return nil
}
