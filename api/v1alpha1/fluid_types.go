// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "k8s.io/apimachinery/pkg/api/resource"

// FluidCache names files of an object store or a file system that Fluid (github.com/fluid-cloudnative/fluid, version 1.0) caches near
// the jobs and mounts into them. Fluid must be installed in the cluster. All fields but runtime.replicas are immutable: to change them,
// make a new DataCache.
// +kubebuilder:validation:XValidation:rule="self.mounts == oldSelf.mounts",message="mounts can't be changed: make a new DataCache"
// +kubebuilder:validation:XValidation:rule="has(self.encryptOptions) == has(oldSelf.encryptOptions) && (!has(self.encryptOptions) || self.encryptOptions == oldSelf.encryptOptions)",message="encryptOptions can't be changed: make a new DataCache"
// +kubebuilder:validation:XValidation:rule="self.mountPath == oldSelf.mountPath",message="mountPath can't be changed: make a new DataCache"
// +kubebuilder:validation:XValidation:rule="self.warmUp == oldSelf.warmUp",message="warmUp can't be changed: make a new DataCache"
// +kubebuilder:validation:XValidation:rule="!self.warmUp || self.runtime.kind != 'Thin'",message="warmUp must be false with runtime.kind Thin: Fluid has no DataLoad for it"
type FluidCache struct {
	// mounts are the places that the files come from.
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	Mounts []FluidMount `json:"mounts"`

	// encryptOptions are options of every mount whose values are in Secrets of the DataCache's namespace. Fluid's pods read them; the
	// controller does not.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=16
	EncryptOptions []FluidEncryptOption `json:"encryptOptions,omitempty"`

	// runtime is the program with which Fluid caches the files.
	Runtime FluidRuntime `json:"runtime"`

	// mountPath is where a TrainJob that names this DataCache finds the files, in every container: an absolute path. Unset:
	// /workspace/dataset, where Trainer's own initializers put a dataset.
	// +optional
	// +kubebuilder:default=/workspace/dataset
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/[^:]*[^/:]$`
	MountPath string `json:"mountPath"`

	// warmUp makes the cache Ready only when a DataLoad has read every file once.
	// +optional
	// +kubebuilder:default=false
	WarmUp bool `json:"warmUp"`
}

// FluidMount is one place that files come from.
type FluidMount struct {
	// name of the mount; files are found in <mountPath>/<name>, unless path says otherwise.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[a-z0-9A-Z]([-_.a-z0-9A-Z]*[a-z0-9A-Z])?$`
	Name string `json:"name"`

	// mountPoint is the location, such as s3://bucket/imagenet, pvc://claim or https://example.com/files. Which schemes are supported
	// depends on the runtime.
	// +kubebuilder:validation:MinLength=5
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^[A-Za-z][A-Za-z0-9+.-]*://.+$`
	MountPoint string `json:"mountPoint"`

	// path is the folder below mountPath in which the files are found: an absolute path, / for mountPath itself. Unset: /<name>.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/[^:]*$`
	Path string `json:"path,omitempty"`

	// options of the runtime for this mount, such as alluxio.underfs.s3.endpoint.
	// +optional
	// +kubebuilder:validation:MaxProperties=16
	Options map[string]FluidOption `json:"options,omitempty"`

	// readOnly keeps jobs from writing to the location. Unset: true.
	// +optional
	// +kubebuilder:default=true
	ReadOnly *bool `json:"readOnly,omitempty"`
}

// FluidOption is the value of an option or a property of a runtime.
//
// +kubebuilder:validation:MaxLength=2048
type FluidOption string

// FluidEncryptOption is an option whose value is in a Secret.
type FluidEncryptOption struct {
	// name of the option, such as aws.accessKeyId.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	Name string `json:"name"`
	// secretName is the Secret, and key the key in it.
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	SecretName string `json:"secretName"`
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:MinLength=1
	Key string `json:"key"`
}

// FluidKind is a kind of Fluid's runtimes, without the suffix Runtime.
//
// +kubebuilder:validation:Enum=Alluxio;JuiceFS;Jindo;GooseFS;Thin
type FluidKind string

// The kinds of runtimes.
const (
	FluidAlluxio FluidKind = "Alluxio"
	FluidJuiceFS FluidKind = "JuiceFS"
	FluidJindo   FluidKind = "Jindo"
	FluidGooseFS FluidKind = "GooseFS"
	// FluidThin mounts what a ThinRuntimeProfile of the platform describes.
	FluidThin FluidKind = "Thin"
)

// FluidRuntime is the program with which Fluid caches the files.
//
// +kubebuilder:validation:XValidation:rule="self.kind == oldSelf.kind",message="kind can't be changed: make a new DataCache"
// +kubebuilder:validation:XValidation:rule="has(self.profile) == has(oldSelf.profile) && (!has(self.profile) || self.profile == oldSelf.profile)",message="profile can't be changed: make a new DataCache"
// +kubebuilder:validation:XValidation:rule="has(self.tiers) == has(oldSelf.tiers) && (!has(self.tiers) || self.tiers == oldSelf.tiers)",message="tiers can't be changed: make a new DataCache"
// +kubebuilder:validation:XValidation:rule="has(self.properties) == has(oldSelf.properties) && (!has(self.properties) || self.properties == oldSelf.properties)",message="properties can't be changed: make a new DataCache"
// +kubebuilder:validation:XValidation:rule="(self.kind == 'Thin') == has(self.profile)",message="profile must be set with kind Thin, and only then"
// +kubebuilder:validation:XValidation:rule="self.kind == 'Thin' || has(self.tiers)",message="tiers must be set: where the runtime keeps files, and how much; only kind Thin needs none"
type FluidRuntime struct {
	// kind of the runtime. Unset: Alluxio.
	// +optional
	// +kubebuilder:default=Alluxio
	Kind FluidKind `json:"kind"`

	// profile is the ThinRuntimeProfile of kind Thin.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Profile string `json:"profile,omitempty"`

	// replicas is the number of workers, each with all tiers.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	Replicas int32 `json:"replicas"`

	// tiers say where a worker keeps files, the fastest first.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8
	Tiers []FluidTier `json:"tiers,omitempty"`

	// properties of the runtime, such as alluxio.user.block.size.bytes.default; for JuiceFS and Thin options of the mount.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	Properties map[string]FluidOption `json:"properties,omitempty"`
}

// FluidMedium is what a tier is made of.
//
// +kubebuilder:validation:Enum=MEM;SSD;HDD
type FluidMedium string

// The media of tiers.
const (
	FluidMemory FluidMedium = "MEM"
	FluidSSD    FluidMedium = "SSD"
	FluidHDD    FluidMedium = "HDD"
)

// FluidTier is a place for files on the node of a worker.
//
// +kubebuilder:validation:XValidation:rule="self.medium == 'MEM' || has(self.path)",message="path must be set with medium SSD and HDD: the folder on the node"
type FluidTier struct {
	// medium is MEM (the default), SSD or HDD.
	// +optional
	// +kubebuilder:default=MEM
	Medium FluidMedium `json:"medium"`

	// path is the folder on the node; several are joined by commas and share the quota. Unset with MEM: /dev/shm.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:Pattern=`^/.*$`
	Path string `json:"path,omitempty"`

	// quota is how many bytes of files a worker keeps in this tier, such as 4Gi.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).isGreaterThan(quantity('0'))",message="quota must be more than 0"
	Quota resource.Quantity `json:"quota"`
}
