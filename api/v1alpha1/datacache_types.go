// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// DataCache keeps one snapshot of one Iceberg table decoded in the memory of a head and some data nodes, and serves it over Arrow
// Flight at grpc://<name>-cache-service.<namespace>:50051. TrainJobs name it as datacache://[<namespace>/]<name>; a TrainJob that
// names a table (cache://<schema>/<table>) gets one of its own, or one shared in its namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:subresource:scale:specpath=.spec.arrow.replicas,statuspath=.status.replicas,selectorpath=.status.selector
// +kubebuilder:resource:categories=kubeflow
// +kubebuilder:printcolumn:name="State",type=string,JSONPath=`.status.state`
// +kubebuilder:printcolumn:name="Loaded",type=string,JSONPath=`.status.loaded`
// +kubebuilder:printcolumn:name="Rows",type=integer,JSONPath=`.status.rows`
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.status.size`
// +kubebuilder:printcolumn:name="Nodes",type=integer,JSONPath=`.spec.arrow.dataNodes`
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

// DataCacheSpec says what to cache and who may use it. Exactly one engine is set; arrow is the only one so far.
//
// +kubebuilder:validation:XValidation:rule="has(self.arrow)",message="exactly one engine must be set: arrow"
type DataCacheSpec struct {
	// arrow keeps the table as Arrow record batches and serves it over Arrow Flight.
	// +optional
	Arrow *ArrowCache `json:"arrow,omitempty"`

	// allowNamespaces lists the other namespaces whose TrainJobs may use this cache; "*" is every namespace.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=256
	// +kubebuilder:validation:items:MaxLength=63
	// +kubebuilder:validation:items:Pattern=`^(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?)$`
	AllowNamespaces []string `json:"allowNamespaces,omitempty"`

	// idleTTL is how long the cache stays in memory after its last user finished, such as 10h or 30m. Unset: until the DataCache is
	// deleted. A cache that was freed for idleness is loaded again when a TrainJob names it.
	// +optional
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('0s')",message="idleTTL must not be negative"
	IdleTTL *metav1.Duration `json:"idleTTL,omitempty"`
}
