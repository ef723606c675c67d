// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/kubeflow/datacache/internal/wellknown"
)

// TestRuntimes runs training on every kind of runtime, and requests its cache in every way. The proposal's sample client, which sends no token,
// reads where the runtime or the TrainJob says READERS=Anyone; elsewhere the loader does.
func TestRuntimes(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(*testing.T, string) *run{
		"upstream's with a cache, as it is": onUpstreams,
		"ours with a cache":                 onOurs,
		"one without a cache step":          func(t *testing.T, ns string) *run { return train(t, ns, small(t)) },
		"the proposal's variables":          byVariables,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := start(t, namespace(t))
			r.ends(t, trainer.TrainJobComplete)
			readOnce(t, r, r.look(t), 1, reviews.Rows)
		})
	}
}

// small returns a job with one pod that reads by the loader, on the stock runtime torch-distributed.
func small(t *testing.T) job {
	t.Helper()
	return cacheJob("small", reviews.write(t), 1, "loader")
}

const withCache = "torch-distributed-with-cache" // the name of upstream's runtime and of ours, which is installed in the test's namespace

func onUpstreams(t *testing.T, ns string) *run {
	runtime := &trainer.ClusterTrainingRuntime{}
	if err := cluster.Client.Get(t.Context(), client.ObjectKey{Name: withCache}, runtime); err != nil {
		t.Fatal(err)
	}
	if image := stepOf(t, runtime.Spec).Image; !strings.Contains(image, "kubeflow/trainer/dataset-initializer") {
		t.Fatalf("the step of the cluster's %s runs %s, want upstream's own", withCache, image)
	}
	j := small(t)
	j.Runtime = withCache
	return train(t, ns, j)
}

// onOurs runs the proposal's sample client on our runtime with that name.
func onOurs(t *testing.T, ns string) *run {
	installOurs(t, ns)
	j := small(t)
	j.Runtime, j.Func = withCache, "sample_client"
	return train(t, ns, j)
}

// installOurs installs our runtime with that name in the namespace, with the step's image set as an overlay does.
func installOurs(t *testing.T, ns string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "runtimes", withCache+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	ours := &trainer.ClusterTrainingRuntime{}
	if err := yaml.UnmarshalStrict(text, ours); err != nil {
		t.Fatal(err)
	}
	twin := appears(t, &trainer.ClusterTrainingRuntime{}, "", wellknown.TwinName("torch-distributed"))
	stepOf(t, ours.Spec).Image = stepOf(t, twin.Spec).Image
	cluster.Create(t, &trainer.TrainingRuntime{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: withCache, Labels: ours.Labels}, Spec: ours.Spec})
}

// stepOf returns the container of the runtime's step dataset-initializer.
func stepOf(t *testing.T, runtime trainer.TrainingRuntimeSpec) *corev1.Container {
	t.Helper()
	for _, replicated := range runtime.Template.Spec.ReplicatedJobs {
		if replicated.Name == wellknown.StepName {
			return &replicated.Template.Spec.Template.Spec.Containers[0]
		}
	}
	t.Fatalf("the runtime has no step %s", wellknown.StepName)
	return nil
}

// byVariables names the table only with variables, as in the YAML of Kubeflow's enhancement proposal 2655, and lets its sample client read.
func byVariables(t *testing.T, ns string) *run {
	source, err := os.ReadFile(filepath.Join("sdk", "functions.py"))
	if err != nil {
		t.Fatal(err)
	}
	var env []corev1.EnvVar
	for name, value := range map[string]string{
		"METADATA_LOC": reviews.write(t), "SCHEMA_NAME": "demo", "TABLE_NAME": "reviews", "CLUSTER_SIZE": "3",
		"HEAD_CPU": "50m", "HEAD_MEM": "128Mi", "WORKER_CPU": "50m", "WORKER_MEM": "256Mi", "READERS": "Anyone",
	} {
		env = append(env, corev1.EnvVar{Name: name, Value: value})
	}
	tj := &trainer.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "variables"},
		Spec: trainer.TrainJobSpec{
			RuntimeRef: trainer.RuntimeRef{Name: "torch-distributed"},
			Initializer: &trainer.Initializer{Dataset: &trainer.DatasetInitializer{
				Env: env, SecretRef: &corev1.LocalObjectReference{Name: storeSecret},
			}},
			Trainer: &trainer.Trainer{
				NumNodes: new(int32(1)), Image: new(trainerImage),
				Command: []string{"bash", "-c", `printf %s "$0" >train.py && torchrun train.py`, string(source) + "\nsample_client()\n"},
			},
		},
	}
	cluster.Create(t, tj)
	return &run{namespace: ns, name: tj.Name, created: tj.CreationTimestamp.Time}
}
