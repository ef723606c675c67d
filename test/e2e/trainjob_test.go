// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/internal/wellknown"
)

// trainerImage has Python, pyarrow and the loader (hack/images).
const trainerImage = "datacache/trainer:dev"

// job describes a TrainJob for sdk/client.py.
type job struct {
	Name        string            `json:"name"`
	Runtime     string            `json:"runtime"`
	Initializer string            `json:"initializer"` // the SDK class: DataCacheInitializer, or Arrow or Fluid for ours
	Dataset     map[string]any    `json:"dataset"`     // its fields
	Func        string            `json:"func"`        // of sdk/functions.py or docs/examples/bert.py
	Args        map[string]any    `json:"args,omitempty"`
	Env         map[string]string `json:"env,omitempty"`
	Volumes     map[string]string `json:"volumes,omitempty"` // folders by PersistentVolumeClaim
	Image       string            `json:"image"`
	Nodes       int               `json:"nodes"`
	Annotations map[string]string `json:"annotations"`
}

// cacheJob returns a TrainJob that reads the table through a cache of two small data nodes, made with the SDK's own class.
func cacheJob(name, metadata string, nodes int, function string) job {
	return job{
		Name: name, Runtime: "torch-distributed", Initializer: "DataCacheInitializer", Func: function, Image: trainerImage, Nodes: nodes,
		Dataset: map[string]any{
			"storage_uri": "cache://demo/reviews", "metadata_loc": metadata, "num_data_nodes": 2,
			"head_cpu": "50m", "head_mem": "128Mi", "worker_cpu": "50m", "worker_mem": "256Mi",
		},
		Annotations: map[string]string{wellknown.AnnotationSecret: storeSecret}, // the SDK has no field for a secretRef
	}
}

// run is a created TrainJob.
type run struct {
	namespace, name string
	created         time.Time
}

// train creates the TrainJob with the SDK, as users do.
func train(t *testing.T, namespace string, j job) *run {
	t.Helper()
	answer := submit(t, namespace, j)
	if answer.Refused != "" {
		t.Fatalf("TrainJob %s was refused: %s", j.Name, answer.Refused)
	}
	r := &run{namespace: namespace, name: answer.Name}
	r.created = r.get(t).CreationTimestamp.Time
	return r
}

// submitted is the result of creating a TrainJob: its name, or the error.
type submitted struct{ Name, Refused string }

func submit(t *testing.T, namespace string, j job) submitted {
	t.Helper()
	var answer submitted
	cluster.sdk.call(t, namespace, "train", j, &answer)
	return answer
}

func (r *run) get(t *testing.T) *trainer.TrainJob {
	t.Helper()
	tj := &trainer.TrainJob{}
	if err := cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: r.namespace, Name: r.name}, tj); err != nil {
		t.Fatal(err)
	}
	return tj
}

// ends waits until the TrainJob has the condition, trainer.TrainJobComplete or trainer.TrainJobFailed, and fails the test at once if
// it has the other one.
func (r *run) ends(t *testing.T, want string) *trainer.TrainJob {
	t.Helper()
	tj := &trainer.TrainJob{}
	other := ""
	await(t, fmt.Sprintf("TrainJob %s to be %s", r.name, want), func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: r.namespace, Name: r.name}, tj); err != nil {
			return err
		}
		for _, end := range []string{trainer.TrainJobComplete, trainer.TrainJobFailed} {
			if c := meta.FindStatusCondition(tj.Status.Conditions, end); c != nil && c.Status == "True" && end != want {
				other = fmt.Sprintf("%s: %s: %s", end, c.Reason, c.Message)
				return nil
			}
		}
		if !meta.IsStatusConditionTrue(tj.Status.Conditions, want) {
			return fmt.Errorf("its conditions are %+v", tj.Status.Conditions)
		}
		return nil
	})
	if other != "" {
		t.Fatalf("TrainJob %s is %s; the SDK says %+v", r.name, other, r.look(t))
	}
	return tj
}

// sdkView is what the SDK reports about a TrainJob.
type sdkView struct {
	Status string
	Steps  map[string]string
	Logs   map[string][]string // by step: dataset-initializer, node-0, ...
	Events []string            // "Reason: message", of the TrainJob itself
	Cache  string
}

func (r *run) look(t *testing.T) sdkView {
	t.Helper()
	var s sdkView
	cluster.sdk.call(t, r.namespace, "look", r.name, &s)
	return s
}

// outputLine is a line of output of training (sdk/functions.py).
type outputLine struct {
	IDs        []int64 `json:"ids"`
	Order      []int64 `json:"order"`
	Epoch      int     `json:"epoch"`
	Step       *int    `json:"step"`
	At         float64 `json:"at"` // when the step began, in seconds since 1970
	Checkpoint int     `json:"checkpoint"`
	State      string  `json:"state"`
	FirstBatch float64 `json:"first_batch"` // seconds since 1970
	Rows       int     `json:"rows"`
	Seconds    float64 `json:"seconds"`
	File       string  `json:"file"`
	Text       string  `json:"text"`
	FirstByte  float64 `json:"first_byte"` // seconds since 1970
	Loss       float64 `json:"loss"`       // the sum of the rows' losses
	Expires    int64   `json:"expires"`    // when the token ends, in seconds since 1970
}

// parse parses the lines that are JSON objects; libraries may have written others.
func parse(t *testing.T, lines []string) []outputLine {
	t.Helper()
	var all []outputLine
	for _, line := range lines {
		if !strings.HasPrefix(line, "{") {
			continue
		}
		var one outputLine
		if err := json.Unmarshal([]byte(line), &one); err != nil {
			t.Fatalf("training wrote %q: %v", line, err)
		}
		all = append(all, one)
	}
	return all
}

// pods returns the pods of a rank that exist, the newest last; at least one.
func (r *run) pods(t *testing.T, rank int) ([]corev1.Pod, error) {
	t.Helper()
	var pods corev1.PodList
	labels := client.MatchingLabels{
		"jobset.sigs.k8s.io/jobset-name": r.name, "jobset.sigs.k8s.io/replicatedjob-name": "node",
		"batch.kubernetes.io/job-completion-index": fmt.Sprint(rank),
	}
	if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(r.namespace), labels); err != nil {
		return nil, err
	}
	if len(pods.Items) == 0 {
		return nil, fmt.Errorf("rank %d has no pod", rank)
	}
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int { return a.CreationTimestamp.Compare(b.CreationTimestamp.Time) })
	return pods.Items, nil
}

// now returns the output so far of a rank's newest pod. It does not use the SDK, which can't read that of a running job.
func (r *run) now(t *testing.T, rank int) ([]outputLine, error) {
	t.Helper()
	pods, err := r.pods(t, rank)
	if err != nil {
		return nil, err
	}
	text, err := cluster.logs.CoreV1().Pods(r.namespace).GetLogs(pods[len(pods)-1].Name, &corev1.PodLogOptions{}).DoRaw(t.Context())
	if err != nil {
		return nil, err
	}
	whole := text[:bytes.LastIndexByte(text, '\n')+1] // the last line may be incomplete
	return parse(t, strings.Split(string(whole), "\n")), nil
}
