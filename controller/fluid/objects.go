// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package fluid

import (
	"cmp"
	"strings"

	fluid "github.com/fluid-cloudnative/fluid/api/v1alpha1"
	"github.com/fluid-cloudnative/fluid/pkg/common"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// What Fluid 1.0.8 writes on objects, and reads from them.
const (
	// annotationClaimSize on a Dataset is the size that its claim asks for; Fluid's default is 100Pi, which every quota refuses.
	annotationClaimSize = "pvc.fluid.io/resources.requests.storage"
	// annotationCreatedBy is on the claims and volumes that Fluid makes, with the value createdByFluid.
	annotationCreatedBy = "CreatedBy"
	createdByFluid      = "fluid"
	// labelRelease is on the pods of a runtime's master, workers and FUSE clients, with the name of the Dataset.
	labelRelease = "release"
)

// leastClaim is the smallest size of a claim, for caches without a quota.
var leastClaim = resource.MustParse("1Gi")

// defaultMemoryPath is where a tier of medium MEM is kept if no path is given: a tmpfs of every node.
const defaultMemoryPath = "/dev/shm"

// fluidRuntime is any of Fluid's runtimes.
type fluidRuntime interface {
	client.Object
	Replicas() int32
	GetStatus() *fluid.RuntimeStatus
}

// newFluidRuntime returns an empty runtime of a kind.
func newFluidRuntime(kind v1alpha1.FluidKind) fluidRuntime {
	switch kind {
	case v1alpha1.FluidJuiceFS:
		return &fluid.JuiceFSRuntime{}
	case v1alpha1.FluidJindo:
		return &fluid.JindoRuntime{}
	case v1alpha1.FluidGooseFS:
		return &fluid.GooseFSRuntime{}
	case v1alpha1.FluidThin:
		return &fluid.ThinRuntime{}
	}
	return &fluid.AlluxioRuntime{}
}

// fluidKindsKnown are the kinds of newFluidRuntime.
var fluidKindsKnown = []v1alpha1.FluidKind{
	v1alpha1.FluidAlluxio, v1alpha1.FluidJuiceFS, v1alpha1.FluidJindo, v1alpha1.FluidGooseFS, v1alpha1.FluidThin,
}

func runtimeKind(kind v1alpha1.FluidKind) string { return string(kind) + "Runtime" }

// dataset returns the Dataset of a cache; the claim that Fluid makes for it has its name.
func dataset(dc *v1alpha1.DataCache) *fluid.Dataset {
	spec := dc.Spec.Fluid
	object := &fluid.Dataset{ObjectMeta: kube.Owned(dc, dc.Name)}
	object.Annotations = map[string]string{annotationClaimSize: claimSize(&spec.Runtime)}
	for i := range spec.Mounts {
		m := &spec.Mounts[i]
		object.Spec.Mounts = append(object.Spec.Mounts, fluid.Mount{
			MountPoint: m.MountPoint, Name: m.Name, Path: m.Path, Options: plain(m.Options), ReadOnly: m.ReadOnly == nil || *m.ReadOnly,
			EncryptOptions: encryptOptions(spec.EncryptOptions),
		})
	}
	return object
}

func encryptOptions(options []v1alpha1.FluidEncryptOption) []fluid.EncryptOption {
	var out []fluid.EncryptOption
	for _, o := range options {
		out = append(out, fluid.EncryptOption{Name: o.Name, ValueFrom: fluid.EncryptOptionSource{
			SecretKeyRef: fluid.SecretKeySelector{Name: o.SecretName, Key: o.Key},
		}})
	}
	return out
}

// claimSize is what the workers keep together.
func claimSize(runtime *v1alpha1.FluidRuntime) string {
	size := resource.Quantity{Format: resource.BinarySI}
	for _, tier := range runtime.Tiers {
		for range runtime.Replicas {
			size.Add(tier.Quota)
		}
	}
	if size.Cmp(leastClaim) < 0 {
		return leastClaim.String()
	}
	return size.String()
}

// runtimeOfCache returns the runtime of a cache. Like Fluid, it makes the Dataset its owner, so that it never outlives the Dataset.
func runtimeOfCache(dc *v1alpha1.DataCache, set *fluid.Dataset) fluidRuntime {
	spec := &dc.Spec.Fluid.Runtime
	tiers, properties := fluid.TieredStore{Levels: levels(spec.Tiers)}, plain(spec.Properties)
	object := newFluidRuntime(spec.Kind)
	switch r := object.(type) {
	case *fluid.AlluxioRuntime:
		r.Spec = fluid.AlluxioRuntimeSpec{Replicas: spec.Replicas, TieredStore: tiers, Properties: properties}
	case *fluid.GooseFSRuntime:
		r.Spec = fluid.GooseFSRuntimeSpec{Replicas: spec.Replicas, TieredStore: tiers, Properties: properties}
	case *fluid.JindoRuntime:
		r.Spec = fluid.JindoRuntimeSpec{Replicas: spec.Replicas, TieredStore: tiers, Properties: properties}
	case *fluid.JuiceFSRuntime:
		r.Spec = fluid.JuiceFSRuntimeSpec{Replicas: spec.Replicas, TieredStore: tiers}
		r.Spec.Fuse.Options = properties
	case *fluid.ThinRuntime:
		r.Spec = fluid.ThinRuntimeSpec{ThinRuntimeProfileName: spec.Profile, Replicas: spec.Replicas, TieredStore: tiers}
		r.Spec.Fuse.Options = properties
	}
	object.SetName(dc.Name)
	object.SetNamespace(dc.Namespace)
	object.SetLabels(kube.CacheLabels(dc))
	object.SetOwnerReferences([]metav1.OwnerReference{ofDataset(set)})
	return object
}

// setReplicas changes the number of workers, the one field of a runtime that follows the DataCache.
func setReplicas(object fluidRuntime, replicas int32) {
	switch r := object.(type) {
	case *fluid.AlluxioRuntime:
		r.Spec.Replicas = replicas
	case *fluid.GooseFSRuntime:
		r.Spec.Replicas = replicas
	case *fluid.JindoRuntime:
		r.Spec.Replicas = replicas
	case *fluid.JuiceFSRuntime:
		r.Spec.Replicas = replicas
	case *fluid.ThinRuntime:
		r.Spec.Replicas = replicas
	}
}

func levels(tiers []v1alpha1.FluidTier) []fluid.Level {
	var out []fluid.Level
	for _, tier := range tiers {
		out = append(out, fluid.Level{
			MediumType: common.MediumType(tier.Medium), VolumeType: common.VolumeTypeHostPath,
			Path: cmp.Or(tier.Path, defaultMemoryPath), Quota: new(tier.Quota.DeepCopy()),
		})
	}
	return out
}

// dataLoad returns the warm-up of a Dataset: it reads every file once.
func dataLoad(dc *v1alpha1.DataCache, set *fluid.Dataset) *fluid.DataLoad {
	object := &fluid.DataLoad{
		ObjectMeta: metav1.ObjectMeta{
			Name: warmUpName(dc), Namespace: dc.Namespace, Labels: kube.CacheLabels(dc), OwnerReferences: []metav1.OwnerReference{ofDataset(set)},
		},
		Spec: fluid.DataLoadSpec{Dataset: fluid.TargetDataset{Name: set.Name, Namespace: set.Namespace}, LoadMetadata: true},
	}
	for _, m := range set.Spec.Mounts {
		object.Spec.Target = append(object.Spec.Target, fluid.TargetPath{Path: cmp.Or(m.Path, "/"+m.Name), Replicas: 1})
	}
	return object
}

func warmUpName(dc *v1alpha1.DataCache) string { return operationName(dc, "warm") }

// ofDataset is the owner reference that Fluid itself gives to runtimes.
func ofDataset(set *fluid.Dataset) metav1.OwnerReference {
	return metav1.OwnerReference{APIVersion: fluid.GroupVersion.String(), Kind: "Dataset", Name: set.Name, UID: set.UID}
}

// belongsTo reports whether an object was made for the Dataset.
func belongsTo(object client.Object, set *fluid.Dataset) bool {
	for _, owner := range object.GetOwnerReferences() {
		if owner.UID == set.UID {
			return object.GetLabels()[wellknown.LabelManagedBy] == wellknown.ManagedBy
		}
	}
	return false
}

// volumeName is the name of the PersistentVolume that Fluid makes. Two Datasets of different namespaces may have the same.
func volumeName(dc *v1alpha1.DataCache) string { return dc.Namespace + "-" + dc.Name }

// isClaimOf reports whether a volume is for the claim of the DataCache, or for none yet.
func isClaimOf(volume *corev1.PersistentVolume, dc *v1alpha1.DataCache) bool {
	ref := volume.Spec.ClaimRef
	return ref == nil || ref.Namespace == dc.Namespace && ref.Name == dc.Name
}

func plain(options map[string]v1alpha1.FluidOption) map[string]string {
	if len(options) == 0 {
		return nil
	}
	out := make(map[string]string, len(options))
	for name, value := range options {
		out[name] = string(value)
	}
	return out
}

// locations lists the mount points of a cache, for people.
func locations(cache *v1alpha1.FluidCache) string {
	names := make([]string, 0, len(cache.Mounts))
	for i := range cache.Mounts {
		names = append(names, cache.Mounts[i].MountPoint)
	}
	return strings.Join(names, ", ")
}
