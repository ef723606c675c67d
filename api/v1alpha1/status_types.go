// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// State is the one word for how a cache is doing. The set is open: an engine that comes later may add words, and who reads them must take
// a word that it doesn't know for a cache that is not ready.
//
// +kubebuilder:validation:MaxLength=64
type State string

// The states of an arrow cache.
const (
	// StatePending: its pods don't run yet.
	StatePending State = "Pending"
	// StatePlanning: the head reads the table's metadata.
	StatePlanning State = "Planning"
	// StateLoading: data nodes decode rows; status.loadedPercent tells how far.
	StateLoading State = "Loading"
	// StateReady: every row is in memory and served.
	StateReady State = "Ready"
	// StateDegraded: it was Ready, and a node that was lost loads its rows again.
	StateDegraded State = "Degraded"
	// StateFailed: it can't be loaded; the condition Ready and lastFailure tell why. While TrainJobs use it, its pods, with their logs, stay
	// until it is tried again.
	StateFailed State = "Failed"
	// StateReleased: its memory is freed, for nobody uses it or it is suspended; the next TrainJob that names it brings it back.
	StateReleased State = "Released"
)

// The types of conditions. Each has a reason of its own: Ready says why not, Progressing what is under way or how it ended, Degraded what
// is lost.
const (
	// ConditionReady is True while every row is served.
	ConditionReady = "Ready"
	// ConditionProgressing is True while pods start, the head plans or nodes load.
	ConditionProgressing = "Progressing"
	// ConditionDegraded is True while rows of a lost node are loaded again.
	ConditionDegraded = "Degraded"
)

// Failure is one that ended an attempt to load a cache. One that is in use is tried again after a pause that doubles from 10 s to 10 min, and at
// once when its annotation datacache.kubeflow.org/retry gets another value.
type Failure struct {
	Time    metav1.Time `json:"time"`
	Message string      `json:"message"`

	// count of failures in a row.
	Count int32 `json:"count"`

	// retry is what the annotation was then.
	// +optional
	Retry string `json:"retry,omitempty"`
}

// DataCacheStatus is what the controller saw last.
type DataCacheStatus struct {
	// observedGeneration is the generation of spec that this status speaks of.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// +optional
	State State `json:"state,omitempty"`

	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// endpoint is what a client connects to, such as grpc://reviews-cache-service.team-a:50051.
	// +optional
	Endpoint string `json:"endpoint,omitempty"`

	// claimName is the PersistentVolumeClaim of a cache whose engine is mounted; arrow sets none.
	// +optional
	ClaimName string `json:"claimName,omitempty"`

	// snapshot is the id of the snapshot that was pinned when the cache was planned first, as decimal digits; every pod that comes later
	// loads the same.
	// +optional
	Snapshot string `json:"snapshot,omitempty"`

	// lastFailure is why the cache failed last, until it is Ready.
	// +optional
	LastFailure *Failure `json:"lastFailure,omitempty"`

	// rows in memory, all data nodes of one copy together.
	// +optional
	Rows *int64 `json:"rows,omitempty"`

	// bytes in memory, all data nodes of one copy together.
	// +optional
	Bytes *int64 `json:"bytes,omitempty"`

	// loadedPercent is how much of the table is in memory, by splits; of several copies the least.
	// +optional
	LoadedPercent *int32 `json:"loadedPercent,omitempty"`

	// replicas are the copies that there are, readyReplicas those of them that serve every row, and selector that of their heads: the
	// scale subresource shows them.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// +optional
	ReadyReplicas int32 `json:"readyReplicas,omitempty"`
	// +optional
	Selector string `json:"selector,omitempty"`

	// usedBy are the TrainJobs that use it now, as <namespace>/<name>, the first 100 of them in that order; users counts all.
	// +optional
	// +listType=set
	UsedBy []string `json:"usedBy,omitempty"`
	// +optional
	Users int32 `json:"users,omitempty"`

	// lastUsedTime is when a TrainJob used it last, at the latest when its last user went; idleTTL counts from here.
	// +optional
	LastUsedTime *metav1.Time `json:"lastUsedTime,omitempty"`

	// provisionedTime is when its pods were asked for, readyTime when every row was first in memory.
	// +optional
	ProvisionedTime *metav1.Time `json:"provisionedTime,omitempty"`
	// +optional
	ReadyTime *metav1.Time `json:"readyTime,omitempty"`
}
