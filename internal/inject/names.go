// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import "strings"

// Group is the API group of everything that datacache adds to objects of others.
const Group = "datacache.kubeflow.org"

// Labels and annotations that the webhook, the controller and the plugin meet in.
const (
	// LabelGate on a runtime: "true" says that its step dataset-initializer is our gate, so that the runtime is used as it is.
	LabelGate = Group + "/gate"
	// LabelDerive on a runtime: "false" keeps the controller from making a twin of it.
	LabelDerive = Group + "/derive"
	// LabelManagedBy has the value ManagedBy on every object and pod of datacache's. The controller sees no others.
	LabelManagedBy = "app.kubernetes.io/managed-by"
	ManagedBy      = "datacache"
	// LabelCache on every pod of a cache: the name of its DataCache. Training pods prefer the zone of pods that carry it.
	LabelCache = Group + "/cache"
	// LabelPlacement on a cache's pods, and AnnotationPlacement on its TrainJob: a text of their own, by which training pods find their
	// cache's zone where the TrainJob had no name yet when it was admitted.
	LabelPlacement      = Group + "/placement"
	AnnotationPlacement = LabelPlacement
	// AnnotationTwinOf on a twin: the name of the runtime, of the same kind, that it is made from.
	AnnotationTwinOf = Group + "/twin-of"
	// AnnotationRuntime on a TrainJob: the runtime that it named before admission, as "name" or, of another kind than
	// ClusterTrainingRuntime, "Kind/name".
	AnnotationRuntime = Group + "/runtime"
	// AnnotationSecret on a TrainJob: where spec.initializer.dataset.secretRef.name goes at admission. Trainer would hand the whole
	// Secret to the step; the keys are for the cache's pods alone.
	AnnotationSecret = Group + "/credentials-secret"
	// PatchManager is the manager of our entry in a TrainJob's spec.runtimePatches.
	PatchManager = Group + "/webhook"
)

// Names that Trainer gives meaning to (kubeflow/trainer v2.3.0 pkg/constants/constants.go and
// pkg/runtime/framework/plugins/jobset/constants).
const (
	// StepName is the job, the container and the ancestor label's value of the step that waits for the cache.
	StepName = "dataset-initializer"
	// NodeName is the container that trains, and the job of most runtimes that it is in.
	NodeName = "node"
	// DefaultRuntime is the ClusterTrainingRuntime of a TrainJob that names none, as in the Kubeflow SDK.
	DefaultRuntime = "torch-distributed"

	// LabelJobSet is on every pod of a TrainJob, with the TrainJob's name; LabelReplicatedJob with the name of the pod's job.
	LabelJobSet        = "jobset.sigs.k8s.io/jobset-name"
	LabelReplicatedJob = "jobset.sigs.k8s.io/replicatedjob-name"

	modelStep      = "model-initializer"
	ancestorLabel  = "trainer.kubeflow.org/trainjob-ancestor-step"
	stepVolume     = "initializer"
	trainerGroup   = "trainer.kubeflow.org"
	clusterRuntime = "ClusterTrainingRuntime"
)

// TwinSuffix ends the name of the runtime that the controller makes from another.
const TwinSuffix = "-data-cache"

// Ports of a cache's head.
const (
	// FlightPort is where it answers Arrow Flight; the KEP's sample client has the number in its code.
	FlightPort = 50051
	// HTTPPort is where it answers /ready, /status and /metrics, and where the step that waits for it takes the controller's notices.
	HTTPPort = 8080
)

// maxJobName is how long the name of a TrainJob with our step may be: JobSet makes pods <name>-dataset-initializer-0-0-abcde of it,
// and a pod's hostname has at most 63 characters (sigs.k8s.io/jobset v0.12.0 pkg/webhooks/jobset_webhook.go:243).
const maxJobName = 63 - len("-"+StepName+"-0-0-abcde")

// generatedSuffix is how many characters the API server adds to metadata.generateName.
const generatedSuffix = 5

// CacheName is the name of a DataCache's LeaderWorkerSet, ServiceAccount and NetworkPolicy.
func CacheName(dataCache string) string { return dataCache + "-cache" }

// ServiceName is the Service that clients connect to. The owner is a DataCache or a TrainJob: the KEP's sample client knows no
// more than its TRAIN_JOB_NAME.
func ServiceName(owner string) string { return owner + "-cache-service" }

// TwinName is the name of a runtime's twin.
func TwinName(runtime string) string { return runtime + TwinSuffix }

// SourceName is the name of the runtime whose twin would have the name; it is false where the name is no twin's.
func SourceName(twin string) (string, bool) {
	source, ok := strings.CutSuffix(twin, TwinSuffix)
	return source, ok && source != ""
}
