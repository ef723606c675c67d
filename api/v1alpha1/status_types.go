// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// State summarizes a cache's status in one word. The set is open: later engines may add states, and clients must treat a state that
// they don't know as not ready.
// +kubebuilder:validation:MaxLength=64
type State string

// The states of a cache, in the words of the engine arrow; those of the engine fluid are in docs/fluid.md.
const (
	// StatePending: the cache's pods don't run yet.
	StatePending State = "Pending"
	// StatePlanning: the head reads the table's metadata.
	StatePlanning State = "Planning"
	// StateLoading: data nodes decode rows; status.loadedPercent is the progress.
	StateLoading State = "Loading"
	// StateReady: every row is in memory and served.
	StateReady State = "Ready"
	// StateDegraded: the cache was Ready, and the rows of a lost node are being loaded again.
	StateDegraded State = "Degraded"
	// StateFailed: loading failed; the condition Ready and lastFailure say why. While TrainJobs use the cache, its pods and their
	// logs are kept until the next attempt.
	StateFailed State = "Failed"
	// StateReleased: the cache's memory is freed because nobody uses it or because it is suspended; the next TrainJob that names it
	// loads it again.
	StateReleased State = "Released"
)

// The condition types. The reason of Ready says why the cache is not ready, that of Progressing what is under way or how it ended,
// that of Degraded which rows are missing.
const (
	// ConditionReady is True while every row is served.
	ConditionReady = "Ready"
	// ConditionProgressing is True while pods start, the head plans or nodes load.
	ConditionProgressing = "Progressing"
	// ConditionDegraded is True while the rows of a lost node are being loaded again.
	ConditionDegraded = "Degraded"
	// ConditionRead is False while a cache is Ready and the TrainJobs that use it read no rows, and says what they wait for. A cache that
	// is not Ready, or that nobody uses, does not have it.
	ConditionRead = "Read"
)

// The conditions of who reads a cache (access.readers).
const (
	// ConditionReadersKnown is True while the cache serves only known readers.
	ConditionReadersKnown = "ReadersKnown"
	// ConditionTokensUnverifiable is True while the manager lacks keys to check tokens with, or those of access.issuers are none. A cache for
	// known readers then refuses every reader whose token it can't check. Other caches don't have the condition.
	ConditionTokensUnverifiable = "TokensUnverifiable"
)

// The reasons of the condition ReadersKnown.
const (
	// ReasonKnown: the cache serves only readers that prove themselves by a token (access.readers: Known).
	ReasonKnown = "Known"
	// ReasonAnyone: whoever can connect is served, as access.readers or the manager's --readers says.
	ReasonAnyone = "Anyone"
	// ReasonStartedBefore: the cache's pods were started before this release, without what checks tokens, and serve as they began.
	ReasonStartedBefore = "StartedBefore"
	// ReasonApplying: the cache's heads have not read a change of access yet.
	ReasonApplying = "Applying"
)

// The reasons of the condition Read.
const (
	// ReasonRead: rows were read in the last minutes.
	ReasonRead = "Read"
	// ReasonTrainJobWaits: a TrainJob does not train yet; the message says what it waits for, and what to do.
	ReasonTrainJobWaits = "TrainJobWaits"
	// ReasonNotRead: no rank has asked for rows, or taken those of its streams, for minutes: it computes, or hangs.
	ReasonNotRead = "NotRead"
	// ReasonRanksWait: the ranks wait for the cache, which has sent nothing for minutes.
	ReasonRanksWait = "RanksWait"
)

// Failure describes the failure that ended an attempt to load a cache. A cache in use is tried again after a delay that doubles from
// 10 s to 10 min, and at once when its annotation datacache.kubeflow.org/retry changes.
type Failure struct {
	Time    metav1.Time `json:"time"`
	Message string      `json:"message"`

	// count of failures in a row.
	Count int32 `json:"count"`

	// retry is the value of the annotation datacache.kubeflow.org/retry at the time of the failure.
	// +optional
	Retry string `json:"retry,omitempty"`
}

// Dataset is a dataset that a client has put.
type Dataset struct {
	Name string `json:"name"`

	// fingerprint identifies the rows. A TrainJob that begins with one, and reads another, says so.
	Fingerprint string `json:"fingerprint"`

	// state is Ready; Unavailable while a data node is missing; Failed when rows are lost, so that it must be put again; or Replaced.
	State string `json:"state"`

	Rows  int64 `json:"rows"`
	Bytes int64 `json:"bytes"`
}

// DataCacheStatus is the status that the controller observed last.
type DataCacheStatus struct {
	// observedGeneration is the generation of the spec that this status describes.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`

	// +optional
	State State `json:"state,omitempty"`

	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// endpoint is the address that clients connect to, such as grpc+tls://reviews-cache-service.team-a:50051; grpc:// where
	// anyone may read.
	// +optional
	Endpoint string `json:"endpoint,omitempty"`

	// caBundle is the PEM certificate of the cache's own certificate authority, which signs the certificates of its servers for the name
	// datacache. It is empty while the cache's pods are those of a release without such authorities.
	// +optional
	CABundle string `json:"caBundle,omitempty"`

	// claimName is the PersistentVolumeClaim of a cache whose engine is mounted as a volume; the arrow engine sets none.
	// +optional
	ClaimName string `json:"claimName,omitempty"`

	// snapshot is the id, in decimal digits, of the snapshot that was pinned when the cache was first planned; all later pods load
	// the same one.
	// +optional
	Snapshot string `json:"snapshot,omitempty"`

	// lastFailure is the reason of the last failure; it is removed when the cache is Ready.
	// +optional
	LastFailure *Failure `json:"lastFailure,omitempty"`

	// rows in memory or, with spill, on disk, summed over all data nodes of one copy.
	// +optional
	Rows *int64 `json:"rows,omitempty"`

	// bytes of these rows.
	// +optional
	Bytes *int64 `json:"bytes,omitempty"`

	// datasets are those that clients have put.
	// +optional
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	Datasets []Dataset `json:"datasets,omitempty"`

	// loadedPercent is the share of the table's splits that are in memory; with several copies, that of the least loaded one. With the
	// engine fluid it is the share of the files that are cached, as Fluid reports it.
	// +optional
	LoadedPercent *int32 `json:"loadedPercent,omitempty"`

	// replicas is the number of copies, readyReplicas the number of copies that serve every row, and selector matches their heads;
	// the scale subresource shows all three.
	// +optional
	Replicas int32 `json:"replicas,omitempty"`
	// +optional
	ReadyReplicas int32 `json:"readyReplicas,omitempty"`
	// +optional
	Selector string `json:"selector,omitempty"`

	// usedBy lists the TrainJobs that use the cache now, as <namespace>/<name>, sorted and limited to the first 100; users counts all
	// of them.
	// +optional
	// +listType=set
	UsedBy []string `json:"usedBy,omitempty"`
	// +optional
	Users int32 `json:"users,omitempty"`

	// lastUsedTime is the last time at which a TrainJob was seen using the cache; idleTTL counts from here.
	// +optional
	LastUsedTime *metav1.Time `json:"lastUsedTime,omitempty"`

	// provisionedTime is when the cache's pods were created, readyTime when every row was in memory for the first time.
	// +optional
	ProvisionedTime *metav1.Time `json:"provisionedTime,omitempty"`
	// +optional
	ReadyTime *metav1.Time `json:"readyTime,omitempty"`
}
