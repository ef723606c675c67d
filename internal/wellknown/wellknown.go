// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package wellknown has the names and ports by which the parts of the control plane, Trainer and clients find each other: labels,
// annotations, steps and the names of objects.
package wellknown

import (
	"strings"

	"github.com/kubeflow/datacache/internal/reference"
)

// Group is the API group of everything that datacache adds to objects of others.
const Group = "datacache.kubeflow.org"

// Labels and annotations shared by the webhook, the controller and the plugin.
const (
	// LabelGate on a runtime: "true" says that its step dataset-initializer is our gate, so that TrainJobs can use it directly.
	LabelGate = Group + "/gate"
	// LabelDerive on a runtime: "false" keeps the controller from making a twin of it.
	LabelDerive = Group + "/derive"
	// LabelManagedBy has the value ManagedBy on all objects and pods of datacache. The controller ignores others.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	ManagedBy      = "datacache"
	// LabelCache on every pod of a cache: the name of its DataCache. Training pods prefer the zone of pods with this label.
	LabelCache = Group + "/cache"
	// LabelRole on every pod of a cache: RoleHead or RoleNode, which is also the name of the container of its server.
	LabelRole = Group + "/role"
	RoleHead  = "head"
	RoleNode  = "node"
	// LabelStepOf on the pods of spec.arrow.derive: the name of the DataCache. They don't have LabelCache, as they serve no rows.
	LabelStepOf = Group + "/step-of"
	// LabelPlacement on a cache's pods, and AnnotationPlacement on its TrainJob: a unique text by which training pods find their
	// cache's zone if the TrainJob had no name yet when it was admitted.
	LabelPlacement      = Group + "/placement"
	AnnotationPlacement = LabelPlacement
	// AnnotationTwinOf on a twin: the name of the runtime of the same kind from which it was made.
	AnnotationTwinOf = Group + "/twin-of"
	// AnnotationRuntime on a TrainJob: the runtime that it named before admission, as "name" or, for other kinds than
	// ClusterTrainingRuntime, "Kind/name".
	AnnotationRuntime = Group + "/runtime"
	// AnnotationSecret on a TrainJob: admission moves spec.initializer.dataset.secretRef.name here, because Trainer would pass the
	// whole Secret to the step. The keys are only for the cache's pods.
	AnnotationSecret = Group + "/credentials-secret"
	// AnnotationUses on the Service of a job that uses a DataCache other than its own: that DataCache as <namespace>/<name>. The Service
	// is the record of the use: jobs with such a Service are users.
	AnnotationUses = Group + "/uses"
	// AnnotationPause on a Workload of Kueue: how often it gave its quota back, since its cache got none, and while it wants none also
	// until when.
	AnnotationPause = Group + "/quota-pause"
	// AnnotationCacheName on every pod that mounts a cache's files: the name of its DataCache.
	AnnotationCacheName = Group + "/cache-name"
	// PatchManager is the manager of our entry in a TrainJob's spec.runtimePatches.
	PatchManager = Group + "/webhook"
)

// Names defined by Trainer (kubeflow/trainer v2.3.0 pkg/constants/constants.go and pkg/runtime/framework/plugins/jobset/constants).
const (
	// StepName is the name of the job and of the container of the step that waits for the cache, and the value of its ancestor label.
	StepName = "dataset-initializer"
	// NodeName is the container that trains and, in most runtimes, its job.
	NodeName = "node"
	// DefaultRuntime is the ClusterTrainingRuntime of a TrainJob that names none, as in the Kubeflow SDK.
	DefaultRuntime = "torch-distributed"

	// LabelJobSet is on every pod of a TrainJob, with the TrainJob's name; LabelReplicatedJob has the name of the pod's job.
	LabelJobSet        = "jobset.sigs.k8s.io/jobset-name"
	LabelReplicatedJob = "jobset.sigs.k8s.io/replicatedjob-name"
)

// TwinSuffix is the suffix of the name of a twin.
const TwinSuffix = "-data-cache"

// Ports of a cache's head.
const (
	// FlightPort is where it serves Arrow Flight; the KEP's sample client has the number in its code.
	FlightPort = 50051
	// HTTPPort is where it serves /ready, /status and /metrics, and where the waiting step receives the controller's notices.
	HTTPPort = 8080
)

// CredentialsFolder is where the containers that train find, in a folder for each cache, a token and the certificate of the cache's authority.
// The folder of the first or only cache is OwnCredentials, that of a cache that is named beside others reference.Hash of its name.
const (
	CredentialsFolder = "/var/run/secrets/datacache"
	OwnCredentials    = "own"
	TokenFile         = "token"
	AuthorityFile     = "ca.crt"
	DatasetFile       = "dataset" // name of the dataset of the first or only cache, if the TrainJob names one
)

// AnnotationDataset is the annotation of pods that train with the content of DatasetFile.
const AnnotationDataset = Group + "/dataset"

// Audience is that of tokens for the DataCache with the name.
func Audience(namespace, name string) string {
	return Group + "/namespaces/" + namespace + "/datacaches/" + name
}

// PlacementAudience is that of tokens for a TrainJob's own DataCache with the label LabelPlacement, whose name did not exist yet when the
// TrainJob was admitted.
func PlacementAudience(placement string) string { return Group + "/placements/" + placement }

// JobAudience returns the audience of tokens of one TrainJob. job is the TrainJob's name, or its LabelPlacement.
func JobAudience(audience, job string) string { return audience + "/trainjobs/" + job }

// AuthoritiesName is the ConfigMap with the certificates of the authorities of a TrainJob's caches. job is the TrainJob's name, or its
// AnnotationPlacement.
func AuthoritiesName(job string) string { return job + "-cache-ca" }

// CacheName is the name of a DataCache's LeaderWorkerSet, ServiceAccount and NetworkPolicy.
func CacheName(dataCache string) string { return dataCache + "-cache" }

// ServiceName is the Service that clients connect to. The owner is a DataCache or a TrainJob: the KEP's sample client only knows its
// TRAIN_JOB_NAME.
func ServiceName(owner string) string { return reference.Service(owner) }

// TwinName is the name of a runtime's twin.
func TwinName(runtime string) string { return runtime + TwinSuffix }

// SourceName is the name of the runtime whose twin would have the given name; ok is false if no twin can have it.
func SourceName(twin string) (string, bool) {
	source, ok := strings.CutSuffix(twin, TwinSuffix)
	return source, ok && source != ""
}
