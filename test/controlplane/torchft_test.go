// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// TestTorchftRuntime follows a TrainJob on torchft-with-cache: every pod is a replica group of its own that finds the lighthouse, a pod
// that is lost or fails comes back while the others stay, and the lighthouse ends when the replicas have trained.
func TestTorchftRuntime(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	shipped(t, ns, "torchft-with-cache")
	headsFollowPods(t, ns)
	var trained atomic.Bool
	var failing atomic.Pointer[types.UID]
	server := heads.of(ns, "any")
	cluster.Kubelet.Play(ns, func(pod *corev1.Pod) kubetest.Act {
		container := pod.Spec.Containers[0].Name
		switch {
		case isCachePod(pod):
			heads.serve(ns, pod.Labels[wellknown.LabelCache], server)
		case container == wellknown.StepName || container == wellknown.NodeName && trained.Load():
			return kubetest.Act{Exit: new(int32(0))}
		case failing.Load() != nil && *failing.Load() == pod.UID:
			return kubetest.Act{Exit: new(int32(1))}
		}
		return kubetest.Act{}
	})
	job := cacheJob(ns, "train", table, tableEnv()...)
	job.Spec.RuntimeRef = trainer.RuntimeRef{Kind: new(trainer.TrainingRuntimeKind), Name: "torchft-with-cache"}
	job.Spec.Trainer = &trainer.Trainer{NumNodes: new(int32(3)), Args: []string{"train.py"}}
	cluster.Create(t, job)

	before := replicas(t, ns, 3)
	for index, pod := range before {
		isReplica(t, index, pod.Spec.Containers[0])
	}
	lighthouse := podsWith(t, ns, 1, client.MatchingLabels{wellknown.LabelReplicatedJob: "lighthouse"})[0]
	if lighthouse.Spec.Hostname != "train-lighthouse-0-0" || lighthouse.Spec.Subdomain != "train" {
		t.Errorf("the lighthouse is %s.%s, not where the replicas look for it", lighthouse.Spec.Hostname, lighthouse.Spec.Subdomain)
	}
	appears(t, &corev1.Service{}, ns, "train")

	cluster.Delete(t, before["1"].DeepCopy())
	again := another(t, ns, before, "1")
	failing.Store(&again["1"].UID)
	another(t, ns, again, "1")
	if set := appears(t, &jobset.JobSet{}, ns, "train"); set.Status.Restarts != 0 {
		t.Errorf("the JobSet was restarted %d times, with all replicas", set.Status.Restarts)
	}

	trained.Store(true)
	kubetest.Eventually(t, "the TrainJob is complete", func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(job.Status.Conditions, trainer.TrainJobComplete) {
			return fmt.Errorf("its conditions are %+v", job.Status.Conditions)
		}
		return nil
	})
	cluster.Vanish(t, &batchv1.Job{}, ns, "train-lighthouse-0")
	cluster.DataCache(t, ns, "train", v1alpha1.StateReleased)
}

// isReplica checks a replica's container: a torchrun of one node, although Trainer says how many there are, that has the number of its
// replica group and the lighthouse's address. The kubelet replaces $(TRAIN_JOB_NAME) only after that variable's own entry.
func isReplica(t *testing.T, index string, c corev1.Container) {
	t.Helper()
	if diff := cmp.Diff([]string{"torchrun", "--standalone", "--nnodes=1", "--max-restarts=10", "train.py"}, slices.Concat(c.Command, c.Args)); diff != "" {
		t.Errorf("command of replica %s (-want +got):\n%s", index, diff)
	}
	at := func(name string) int {
		return slices.IndexFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name == name })
	}
	group, address, job := at("REPLICA_GROUP_ID"), at("TORCHFT_LIGHTHOUSE"), at("TRAIN_JOB_NAME")
	if group < 0 || job < 0 || address < job {
		t.Fatalf("replica %s has the environment %+v", index, c.Env)
	}
	if path := c.Env[group].ValueFrom.FieldRef.FieldPath; path != "metadata.annotations['batch.kubernetes.io/job-completion-index']" {
		t.Errorf("replica %s takes its number from %s", index, path)
	}
	if value := c.Env[address].Value; value != "http://$(TRAIN_JOB_NAME)-lighthouse-0-0.$(TRAIN_JOB_NAME):29510" {
		t.Errorf("replica %s looks for the lighthouse at %s", index, value)
	}
}

// replicas waits until so many replicas run, and returns their pods by completion index.
func replicas(t *testing.T, namespace string, count int) map[string]*corev1.Pod {
	t.Helper()
	running := map[string]*corev1.Pod{}
	kubetest.Eventually(t, fmt.Sprintf("%d replicas run", count), func() error {
		clear(running)
		var pods corev1.PodList
		if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(namespace), client.MatchingLabels{wellknown.LabelReplicatedJob: wellknown.NodeName}); err != nil {
			return err
		}
		for i, pod := range pods.Items {
			if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil {
				running[pod.Annotations[batchv1.JobCompletionIndexAnnotation]] = &pods.Items[i]
			}
		}
		if len(running) != count {
			return fmt.Errorf("%d of %d pods do", len(running), len(pods.Items))
		}
		return nil
	})
	return running
}

// another waits until another pod is the replica of an index, and checks that the others stayed.
func another(t *testing.T, namespace string, before map[string]*corev1.Pod, index string) map[string]*corev1.Pod {
	t.Helper()
	var after map[string]*corev1.Pod
	kubetest.Eventually(t, "replica "+index+" is back", func() error {
		after = replicas(t, namespace, len(before))
		if after[index].UID == before[index].UID {
			return errors.New("it is still the same pod")
		}
		return nil
	})
	for i, pod := range before {
		if i != index && after[i].UID != pod.UID {
			t.Errorf("replica %s is another pod, since replica %s came back", i, index)
		}
	}
	return after
}
