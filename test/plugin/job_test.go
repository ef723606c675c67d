// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// cacheJob returns a TrainJob with a cache on the stock runtime, after waiting for the runtime's twin.
func cacheJob(t *testing.T, namespace, size string) *trainer.TrainJob {
	t.Helper()
	const stock = "torch-distributed"
	if err := cluster.InstallRuntimes(t.Context(), stock); err != nil {
		t.Fatal(err)
	}
	found(t, &trainer.ClusterTrainingRuntime{}, "", wellknown.TwinName(stock))
	return &trainer.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "train"},
		Spec: trainer.TrainJobSpec{
			RuntimeRef: trainer.RuntimeRef{Name: stock},
			Trainer:    &trainer.Trainer{NumNodes: new(int32(1))},
			Initializer: &trainer.Initializer{Dataset: &trainer.DatasetInitializer{
				StorageUri: new("cache://demo/reviews"),
				Env:        []corev1.EnvVar{{Name: "METADATA_LOC", Value: "s3://lake/reviews/metadata/00001.metadata.json"}, {Name: "CLUSTER_SIZE", Value: size}},
			}},
		},
	}
}

// found waits for an object and reads it.
func found(t *testing.T, object client.Object, namespace, name string) {
	t.Helper()
	kubetest.Eventually(t, fmt.Sprintf("%T %s", object, name), func() error {
		return cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, object)
	})
}

// TestJobIsServedByTrainerItself checks that the TrainJob is not modified, gets its cache, trains and frees the cache.
func TestJobIsServedByTrainerItself(t *testing.T) {
	t.Parallel()
	namespace := cluster.Namespace(t)
	var seen atomic.Bool // a job that ends at once may end before its cache exists
	cluster.Kubelet.Play(namespace, func(pod *corev1.Pod) kubetest.Act {
		if seen.Load() {
			return kubetest.Succeed(pod)
		}
		return kubetest.Act{}
	})
	job := cacheJob(t, namespace, "3")
	if err := cluster.Client.Create(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	if job.Spec.RuntimeRef.Name != "torch-distributed" || len(job.Annotations) > 0 || len(job.Spec.RuntimePatches) > 0 {
		t.Errorf("the TrainJob was edited: runtimeRef %+v, annotations %v, runtimePatches %+v", job.Spec.RuntimeRef, job.Annotations, job.Spec.RuntimePatches)
	}
	dc := &v1alpha1.DataCache{}
	found(t, dc, namespace, "train")
	if dc.Spec.Arrow.DataNodes != 2 || dc.Spec.Arrow.Table != "demo.reviews" {
		t.Errorf("its cache is %+v, want two data nodes for demo.reviews", dc.Spec.Arrow)
	}
	made := &jobset.JobSet{}
	found(t, made, namespace, "train")
	waits(t, made)
	found(t, &lws.LeaderWorkerSet{}, namespace, "train-cache")
	seen.Store(true)
	kubetest.Eventually(t, "the TrainJob is complete and its cache freed", func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(job.Status.Conditions, trainer.TrainJobComplete) {
			return fmt.Errorf("its conditions are %+v", job.Status.Conditions)
		}
		err := cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "train-cache"}, &lws.LeaderWorkerSet{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, errors.New("its LeaderWorkerSet is there"))
	})
}

// waits checks that training waits for the step dataset-initializer.
func waits(t *testing.T, made *jobset.JobSet) {
	t.Helper()
	jobs := made.Spec.ReplicatedJobs
	if len(jobs) != 2 || jobs[0].Name != wellknown.StepName || jobs[1].Name != wellknown.NodeName {
		t.Fatalf("the JobSet has %d jobs, want our step and training", len(jobs))
	}
	if got := jobs[0].Template.Spec.Template.Spec.Containers[0].Image; got != image {
		t.Errorf("the step runs %s, want %s", got, image)
	}
	if want := (jobset.DependsOn{Name: wellknown.StepName, Status: jobset.DependencyComplete}); !slices.Contains(jobs[1].DependsOn, want) {
		t.Errorf("training waits for %+v, want %+v", jobs[1].DependsOn, want)
	}
	if env := jobs[0].Template.Spec.Template.Spec.Containers[0].Env; !slices.ContainsFunc(env, func(v corev1.EnvVar) bool { return v.Name == "STORAGE_URI" }) {
		t.Errorf("the step's environment is %v: Trainer took it for no dataset initializer", env)
	}
}

// TestJobIsRefusedByTrainerItself checks that errors are those of our webhook, which is not installed.
func TestJobIsRefusedByTrainerItself(t *testing.T) {
	t.Parallel()
	err := cluster.Client.Create(t.Context(), cacheJob(t, cluster.Namespace(t), "2.5"))
	if err == nil {
		t.Fatal("the TrainJob was admitted")
	}
	for _, part := range []string{"spec.initializer.dataset.env[1].value: Invalid value: ", `"2.5"`, "must be an integer from 2", "trainer.kubeflow.org"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("the refusal lacks %q:\n%v", part, err)
		}
	}
}

// TestResumesWithoutItsRuntime checks that a TrainJob that Trainer has built once can be suspended and resumed after its runtime and
// its twin are deleted or changed.
func TestResumesWithoutItsRuntime(t *testing.T) {
	t.Parallel()
	for name, end := range map[string]func(t *testing.T, runtime *trainer.TrainingRuntime){
		"deleted": func(t *testing.T, runtime *trainer.TrainingRuntime) {
			t.Helper()
			if err := cluster.Client.Delete(t.Context(), runtime); err != nil {
				t.Fatal(err)
			}
		},
		"relabelled": func(t *testing.T, runtime *trainer.TrainingRuntime) {
			t.Helper()
			kubetest.Eventually(t, "the runtime wants no twin", func() error {
				if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(runtime), runtime); err != nil {
					return err
				}
				runtime.Labels = map[string]string{wellknown.LabelDerive: "false"}
				return cluster.Client.Update(t.Context(), runtime)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			namespace := cluster.Namespace(t)
			job := cacheJob(t, namespace, "2")
			runtime := &trainer.TrainingRuntime{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "own"}}
			stock := &trainer.ClusterTrainingRuntime{}
			found(t, stock, "", "torch-distributed")
			runtime.Spec = stock.Spec
			if err := cluster.Client.Create(t.Context(), runtime); err != nil {
				t.Fatal(err)
			}
			found(t, &trainer.TrainingRuntime{}, namespace, wellknown.TwinName("own"))
			job.Spec.RuntimeRef = trainer.RuntimeRef{Kind: new(trainer.TrainingRuntimeKind), Name: "own"}
			if err := cluster.Client.Create(t.Context(), job); err != nil {
				t.Fatal(err)
			}
			made := &jobset.JobSet{}
			found(t, made, namespace, "train")
			end(t, runtime)
			kubetest.Eventually(t, "the twin is gone", func() error {
				err := cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: wellknown.TwinName("own")}, &trainer.TrainingRuntime{})
				if apierrors.IsNotFound(err) {
					return nil
				}
				return errors.Join(err, errors.New("it is there"))
			})
			for _, suspend := range []bool{true, false} {
				kubetest.Eventually(t, fmt.Sprintf("the JobSet follows suspend=%t", suspend), func() error {
					if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
						return err
					}
					if *job.Spec.Suspend != suspend {
						job.Spec.Suspend = &suspend
						if err := cluster.Client.Update(t.Context(), job); err != nil {
							return err
						}
					}
					if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(made), made); err != nil {
						return err
					}
					if made.Spec.Suspend == nil || *made.Spec.Suspend != suspend {
						return fmt.Errorf("the JobSet's suspend is %v", made.Spec.Suspend)
					}
					return nil
				})
			}
			waits(t, made)
		})
	}
}
