// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DataCache keeps the data of TrainJobs near them. With the engine arrow it is one snapshot of one Iceberg table, decoded in the memory
// of a head and some data nodes, and served over Arrow Flight at grpc+tls://<name>-cache-service.<namespace>:50051. With the engine fluid
// it is the files of an object store or file system, mounted into the jobs. TrainJobs name it as datacache://[<namespace>/]<name>; a
// TrainJob that names a table (cache://<schema>/<table>) gets one of its own, or one shared in its namespace, and a TrainJob that names
// files (fluid+s3://bucket/folder) one shared in its namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.arrow.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:resource:categories=kubeflow
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Loaded%",type=integer,JSONPath=`.status.loadedPercent`
// +kubebuilder:printcolumn:name="Rows",type=integer,JSONPath=`.status.rows`
// +kubebuilder:printcolumn:name="Bytes",type=integer,JSONPath=`.status.bytes`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.spec.arrow.dataNodes`
// +kubebuilder:printcolumn:name="Ready",type=integer,JSONPath=`.status.readyReplicas`,priority=1
// +kubebuilder:printcolumn:name="Claim",type=string,JSONPath=`.status.claimName`,priority=1
// +kubebuilder:printcolumn:name="Used",type=integer,JSONPath=`.status.users`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
// +kubebuilder:validation:XValidation:rule="size(self.metadata.name) <= 43",message="metadata.name must have at most 43 characters: the cache's LeaderWorkerSet is <name>-cache, and its pods' labels have no more room"
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",message="metadata.name must be a DNS label that begins with a letter: its Service is named after it"
type DataCache struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	Spec DataCacheSpec `json:"spec"`
	// +optional
	Status DataCacheStatus `json:"status,omitempty"`
}

// DataCacheList is a list of DataCaches.
//
// +kubebuilder:object:root=true
type DataCacheList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []DataCache `json:"items"`
}

// DataCacheSpec says what to cache and who may use it. Exactly one engine is set: arrow or fluid.
//
// +kubebuilder:validation:XValidation:rule="[has(self.arrow), has(self.fluid)].exists_one(set, set)",message="exactly one engine must be set: arrow or fluid"
// +kubebuilder:validation:XValidation:rule="has(self.fluid) == has(oldSelf.fluid)",message="the engine can't be changed: make a new DataCache"
// +kubebuilder:validation:XValidation:rule="!has(self.fluid) || !has(self.credentials)",message="credentials must not be set with fluid: spec.fluid.encryptOptions names the keys of Secrets"
// +kubebuilder:validation:XValidation:rule="!has(self.fluid) || !has(self.sharing) || (!has(self.sharing.weights) && !has(self.sharing.maxJobs) && !has(self.sharing.maxStreamsPerJob))",message="sharing must be unset with fluid: it is for the streams of arrow"
// +kubebuilder:validation:XValidation:rule="!has(self.fluid) || !has(self.access) || (!has(self.access.readers) && !has(self.access.accounts) && !has(self.access.issuers))",message="access.readers, access.accounts and access.issuers must be unset with fluid: whoever may mount the claim reads its files"
// +kubebuilder:validation:XValidation:rule="!has(self.fluid) || !has(self.tls) || !has(self.tls.rows)",message="tls must be unset with fluid: it is for the connections of arrow"
// +kubebuilder:validation:XValidation:rule="!has(self.fluid) || !has(self.access) || !has(self.access.namespaces) || !has(self.access.namespaces.from) || self.access.namespaces.from == 'Same'",message="access.namespaces must be unset with fluid: a claim can be mounted in its own namespace only"
type DataCacheSpec struct {
	// arrow is the engine that keeps the table as Arrow record batches and serves it over Arrow Flight.
	// +optional
	Arrow *ArrowCache `json:"arrow,omitempty"`

	// fluid is the engine that caches files with Fluid and mounts them into the jobs.
	// +optional
	Fluid *FluidCache `json:"fluid,omitempty"`

	// credentials for the store that the data is read from: a Secret whose keys become environment variables of the cache's pods,
	// such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY.
	// +optional
	Credentials *Credentials `json:"credentials,omitempty"`

	// access says who may read the cache. It may be changed at any time: running caches follow within about two minutes.
	// +optional
	Access Access `json:"access,omitempty"`

	// tls says what is encrypted between the cache and its clients. It may be changed at any time, as access.
	// +optional
	TLS TLS `json:"tls,omitempty"`

	// retention says how long the cache is kept after its last use.
	// +optional
	Retention Retention `json:"retention,omitempty"`

	// sharing says how the jobs that read the cache at the same time share its data nodes. It may be changed at any time: running data
	// nodes follow within about two minutes.
	// +optional
	Sharing Sharing `json:"sharing,omitempty"`

	// suspend frees the cache's memory while it is true, even if TrainJobs use the cache.
	// +optional
	Suspend bool `json:"suspend,omitempty"`
}

// Sharing holds weights and limits of jobs. A job is named by the field job of its requests; our loader sends the name of its TrainJob.
// Requests without a name count for their client's address.
type Sharing struct {
	// weights of jobs by name; jobs that are not listed have 1. While data nodes can't serve all jobs as fast as these read, each job gets
	// bytes in proportion to its weight.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(name, size(name) >= 1 && size(name) <= 63)",message="weights must have names of 1 to 63 characters"
	// +kubebuilder:validation:XValidation:rule="self.all(name, self[name] >= 1 && self[name] <= 1000)",message="weights must be from 1 to 1000"
	Weights map[string]int32 `json:"weights,omitempty"`

	// maxJobs is the number of jobs that may have streams of a data node at a time. Unset or 0: no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxJobs int32 `json:"maxJobs,omitempty"`

	// maxStreamsPerJob is the number of streams of a data node that a job may have at a time. Unset or 0: no limit.
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxStreamsPerJob int32 `json:"maxStreamsPerJob,omitempty"`
}

// Credentials names a Secret in the DataCache's namespace. The controller never reads it; the kubelet passes it to the pods.
type Credentials struct {
	// +kubebuilder:validation:XValidation:rule="self.name != ''",message="name must be that of a Secret of this namespace"
	SecretRef corev1.LocalObjectReference `json:"secretRef"`
}

// Retention holds durations such as 90s, 30m or 10h.
type Retention struct {
	// idleTTL is how long the cache stays in memory after its last user finished. Unset: until the DataCache is deleted. A cache
	// whose memory was freed because it was idle is loaded again when a TrainJob names it. A cache that belongs to one TrainJob is
	// deleted with the TrainJob, regardless of this field.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="idleTTL must not be negative"
	IdleTTL *metav1.Duration `json:"idleTTL,omitempty"`

	// suspendGrace is how long a TrainJob's own cache stays in memory while the TrainJob is suspended, so that a TrainJob that a
	// queue evicts and admits again finds it loaded. Unset: 10m; 0s: it is freed at once.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="suspendGrace must not be negative"
	SuspendGrace *metav1.Duration `json:"suspendGrace,omitempty"`

	// deleteAfterIdle is how long after its last use the DataCache itself is deleted. Unset: never. Caches that the controller makes for the
	// TrainJobs of a namespace have 24h.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="deleteAfterIdle must not be negative"
	DeleteAfterIdle *metav1.Duration `json:"deleteAfterIdle,omitempty"`
}
