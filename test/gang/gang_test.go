// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/internal/gang"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// nodes is the number of training pods of each gang; each requests one cpu.
const nodes = 2

// team is a namespace with a runtime whose training pods are a gang, and a machine that they alone run on.
type team struct {
	namespace string
	machine   *kubetest.Machine
	loaded    atomic.Bool // the steps that wait for caches end
	trained   atomic.Bool // the training pods end
}

// newTeam makes a team whose machine has room for that many training pods.
func newTeam(t *testing.T, name string, room int, policy trainer.PodGroupPolicySource) *team {
	t.Helper()
	own := &team{namespace: cluster.Namespace(t), machine: cluster.Machine(t, name)}
	own.machine.Hold(t, strconv.Itoa(room))
	cluster.Kubelet.Play(own.namespace, func(pod *corev1.Pod) kubetest.Act {
		step := pod.Labels[wellknown.LabelReplicatedJob]
		if step == wellknown.StepName && own.loaded.Load() || step == wellknown.NodeName && own.trained.Load() {
			return kubetest.Act{Exit: new(int32(0))}
		}
		return kubetest.Act{}
	})
	stock := &trainer.ClusterTrainingRuntime{}
	cluster.Appear(t, stock, "", runtime)
	gangs := &trainer.TrainingRuntime{ObjectMeta: metav1.ObjectMeta{Namespace: own.namespace, Name: "gang", Labels: stock.Labels}, Spec: *stock.Spec.DeepCopy()}
	gangs.Spec.PodGroupPolicy = &trainer.PodGroupPolicy{PodGroupPolicySource: policy}
	pod := &gangs.Spec.Template.Spec.ReplicatedJobs[0].Template.Spec.Template.Spec
	on := own.machine.On()
	pod.NodeSelector, pod.Tolerations = on.NodeSelector, on.Tolerations
	pod.Containers[0].Resources.Requests = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	cluster.Create(t, gangs)
	cluster.Appear(t, &trainer.TrainingRuntime{}, own.namespace, wellknown.TwinName("gang"))
	return own
}

func coscheduling() trainer.PodGroupPolicySource {
	return trainer.PodGroupPolicySource{Coscheduling: &trainer.CoschedulingPodGroupPolicySource{ScheduleTimeoutSeconds: new(int32(2))}}
}

// job returns a TrainJob with a cache.
func (own *team) job(name string) *trainer.TrainJob {
	env := []corev1.EnvVar{{Name: "METADATA_LOC", Value: "s3://lake/reviews/metadata/00001.metadata.json"}, {Name: "CLUSTER_SIZE", Value: "2"}}
	return &trainer.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: own.namespace, Name: name},
		Spec: trainer.TrainJobSpec{
			RuntimeRef:  trainer.RuntimeRef{Name: "gang", Kind: new(trainer.TrainingRuntimeKind)},
			Trainer:     &trainer.Trainer{NumNodes: new(int32(nodes))},
			Initializer: &trainer.Initializer{Dataset: &trainer.DatasetInitializer{StorageUri: new("cache://demo/reviews"), Env: env}},
		},
	}
}

// pods returns the pods of a step of a TrainJob, and how many of them are bound to a machine and have not ended.
func (own *team) pods(t *testing.T, job, step string) (pods []corev1.Pod, bound int) {
	t.Helper()
	var list corev1.PodList
	labels := client.MatchingLabels{wellknown.LabelJobSet: job, wellknown.LabelReplicatedJob: step}
	if err := cluster.Client.List(t.Context(), &list, client.InNamespace(own.namespace), labels); err != nil {
		t.Fatal(err)
	}
	for i := range list.Items {
		if pod := &list.Items[i]; pod.Spec.NodeName != "" && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			bound++
		}
	}
	return list.Items, bound
}

// bound waits until that many pods of a step are bound.
func (own *team) bound(t *testing.T, job, step string, want int) {
	t.Helper()
	kubetest.Eventually(t, fmt.Sprintf("%d pods %s of %s to be bound", want, step, job), func() error {
		if pods, bound := own.pods(t, job, step); bound != want {
			return fmt.Errorf("%d of %d are", bound, len(pods))
		}
		return nil
	})
}

// unschedulable waits until the scheduler has tried each training pod of a TrainJob, and checks that none is bound.
func (own *team) unschedulable(t *testing.T, job string) {
	t.Helper()
	kubetest.Eventually(t, "the scheduler to reject the pods of "+job, func() error {
		pods, bound := own.pods(t, job, wellknown.NodeName)
		if bound > 0 {
			t.Fatalf("%d of the %d pods of %s are bound, want none", bound, len(pods), job)
		}
		if rejected := rejected(pods); rejected != nodes {
			return fmt.Errorf("%d of %d are", rejected, len(pods))
		}
		return nil
	})
}

// rejected is the number of pods that the scheduler has found no room for.
func rejected(pods []corev1.Pod) (count int) {
	for i := range pods {
		if slices.ContainsFunc(pods[i].Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
		}) {
			count++
		}
	}
	return count
}

func (own *team) completes(t *testing.T, name string) {
	t.Helper()
	job := &trainer.TrainJob{}
	cluster.Become(t, job, own.namespace, name, "complete", func() error {
		if !meta.IsStatusConditionTrue(job.Status.Conditions, trainer.TrainJobComplete) {
			return fmt.Errorf("%+v", job.Status)
		}
		return nil
	})
}

// requires waits until the TrainJob's group requires the training pods alone.
func (own *team) requires(t *testing.T, kind schema.GroupVersionKind, job string, members int64, cpu string) {
	t.Helper()
	group := &unstructured.Unstructured{}
	group.SetGroupVersionKind(kind)
	cluster.Become(t, group, own.namespace, job, "right", func() error {
		count, _, err := unstructured.NestedInt64(group.Object, "spec", "minMember")
		if err != nil {
			return err
		}
		requests, _, err := unstructured.NestedStringMap(group.Object, "spec", "minResources")
		if err != nil {
			return err
		}
		if count != members || requests["cpu"] != cpu {
			return fmt.Errorf("it requires %d pods and %v", count, requests)
		}
		return nil
	})
}

// TestGang covers TrainJobs with a cache whose training pods scheduler-plugins starts together, and what Volcano would read.
func TestGang(t *testing.T) {
	install(t)
	for name, test := range map[string]func(*testing.T){
		"room for all": roomForAll, "room for one less": roomForOneLess, "two gangs": twoGangs, "a pod is replaced": replaced, "suspended": suspended, "Volcano": volcano, "an initializer of others": ofOthers,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t)
		})
	}
}

// roomForAll: the step that waits for the cache runs alone, then all train.
func roomForAll(t *testing.T) {
	own := newTeam(t, "all", nodes, coscheduling())
	cluster.Create(t, own.job("train"))
	own.bound(t, "train", wellknown.StepName, 1)
	own.requires(t, gang.Kinds[0], "train", nodes, "2")
	if pods, _ := own.pods(t, "train", wellknown.NodeName); len(pods) > 0 {
		t.Errorf("there are %d training pods before the cache is loaded", len(pods))
	}
	own.loaded.Store(true)
	own.bound(t, "train", wellknown.NodeName, nodes)
	own.trained.Store(true)
	own.completes(t, "train")
}

// roomForOneLess: no pod takes room that does not suffice for all.
func roomForOneLess(t *testing.T) {
	own := newTeam(t, "less", nodes-1, coscheduling())
	own.loaded.Store(true)
	cluster.Create(t, own.job("train"))
	own.unschedulable(t, "train")
	own.machine.Hold(t, strconv.Itoa(nodes))
	own.bound(t, "train", wellknown.NodeName, nodes)
	own.trained.Store(true)
	own.completes(t, "train")
}

// twoGangs: of two with room for one, one trains, then the other.
func twoGangs(t *testing.T) {
	own := newTeam(t, "one", nodes, coscheduling())
	own.loaded.Store(true)
	names := []string{"first", "second"}
	for _, name := range names {
		cluster.Create(t, own.job(name))
	}
	kubetest.Eventually(t, "one of both to train", func() error {
		pods, one := own.pods(t, names[0], wellknown.NodeName)
		more, two := own.pods(t, names[1], wellknown.NodeName)
		if len(pods)+len(more) != 2*nodes || one+two != nodes {
			return fmt.Errorf("%d of %d and %d of %d pods are bound", one, len(pods), two, len(more))
		}
		if one == 0 {
			names[0], names[1] = names[1], names[0]
		} else if two > 0 {
			return errors.New("each has a part of the room")
		}
		return nil
	})
	own.unschedulable(t, names[1])
	own.trained.Store(true)
	own.completes(t, names[0])
	own.completes(t, names[1])
}

// replaced: a pod that ends while others train gets a successor, which joins them.
func replaced(t *testing.T) {
	own := newTeam(t, "replaced", nodes, coscheduling())
	own.loaded.Store(true)
	cluster.Create(t, own.job("train"))
	own.bound(t, "train", wellknown.NodeName, nodes)
	before, _ := own.pods(t, "train", wellknown.NodeName)
	cluster.Delete(t, &before[0])
	kubetest.Eventually(t, "a successor to be bound", func() error {
		now, bound := own.pods(t, "train", wellknown.NodeName)
		if bound != nodes || slices.ContainsFunc(now, func(pod corev1.Pod) bool { return pod.UID == before[0].UID }) {
			return fmt.Errorf("%d of %d are", bound, len(now))
		}
		return nil
	})
	own.trained.Store(true)
	own.completes(t, "train")
}

// suspended: Trainer counts anew while a TrainJob is suspended, and the step stays out of the gang.
func suspended(t *testing.T) {
	own := newTeam(t, "suspended", nodes, coscheduling())
	own.loaded.Store(true)
	job := own.job("train")
	job.Spec.Suspend = new(true)
	cluster.Create(t, job)
	suspend := func(value bool) {
		kubetest.Eventually(t, "suspend or resume", func() error {
			if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
				return err
			}
			job.Spec.Suspend = &value
			return cluster.Client.Update(t.Context(), job)
		})
	}
	own.requires(t, gang.Kinds[0], "train", nodes+1, "2100m")
	set := &jobset.JobSet{}
	cluster.Appear(t, set, own.namespace, "train")
	for i := range set.Spec.ReplicatedJobs {
		step := &set.Spec.ReplicatedJobs[i]
		if group, grouped := step.Template.Spec.Template.Labels[gang.Label]; grouped != (step.Name == wellknown.NodeName) {
			t.Errorf("the pods of %s are in the group %q", step.Name, group)
		}
	}
	rests(t, set)
	suspend(false)
	own.requires(t, gang.Kinds[0], "train", nodes, "2")
	own.bound(t, "train", wellknown.NodeName, nodes)
	suspend(true)
	own.requires(t, gang.Kinds[0], "train", nodes+1, "2100m")
	own.bound(t, "train", wellknown.NodeName, 0)
	suspend(false)
	own.bound(t, "train", wellknown.NodeName, nodes)
	own.trained.Store(true)
	own.completes(t, "train")
}

// rests checks that Trainer, which applies the JobSet of a suspended TrainJob again and again, and the webhook don't write in turns.
func rests(t *testing.T, set *jobset.JobSet) {
	t.Helper()
	kubetest.Eventually(t, "the JobSet to rest for a second", func() error {
		before := set.ResourceVersion
		time.Sleep(time.Second) //nolint:forbidigo // nothing is written meanwhile
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(set), set); err != nil {
			return err
		}
		if set.ResourceVersion != before {
			return fmt.Errorf("it was written again: generation %d", set.Generation)
		}
		return nil
	})
}

// ofOthers: a gang whose initializer is not ours stays as Trainer made it. It waits for itself, which shows that the scheduler is real.
func ofOthers(t *testing.T) {
	own := newTeam(t, "others", nodes, coscheduling())
	change := &trainer.TrainingRuntime{}
	cluster.Appear(t, change, own.namespace, "gang")
	step := *change.Spec.Template.Spec.ReplicatedJobs[0].DeepCopy()
	step.Name = wellknown.StepName
	step.Template.Labels = map[string]string{"trainer.kubeflow.org/trainjob-ancestor-step": wellknown.StepName}
	step.Template.Spec.Template.Spec.Containers[0].Name = wellknown.StepName
	step.Template.Spec.Template.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "initializer", MountPath: "/workspace"}}
	step.Template.Spec.Template.Spec.Volumes = []corev1.Volume{{Name: "initializer"}}
	jobs := &change.Spec.Template.Spec.ReplicatedJobs
	(*jobs)[0].DependsOn = []jobset.DependsOn{{Name: wellknown.StepName, Status: jobset.DependencyComplete}}
	*jobs = append([]jobset.ReplicatedJob{step}, *jobs...)
	change.ResourceVersion, change.Name = "", "others"
	change.Labels[wellknown.LabelDerive] = "false"
	cluster.Create(t, change)
	job := own.job("train")
	job.Spec.RuntimeRef.Name = "others"
	job.Spec.Initializer.Dataset.StorageUri = new("hf://demo/reviews")
	cluster.Create(t, job)
	own.requires(t, gang.Kinds[0], "train", nodes+1, "3")
	kubetest.Eventually(t, "the scheduler to reject the initializer", func() error {
		pods, bound := own.pods(t, "train", wellknown.StepName)
		if bound > 0 {
			t.Fatal("the initializer alone is bound")
		}
		if rejected := rejected(pods); len(pods) != 1 || rejected != 1 {
			return fmt.Errorf("%d of %d are", rejected, len(pods))
		}
		return nil
	})
}

// TestPodGroupOfOthers checks that the manager's token can't change a PodGroup that is no TrainJob's.
func TestPodGroupOfOthers(t *testing.T) {
	t.Parallel()
	if err := cluster.Install(t.Context(), cluster.Render(t, overlay), net.JoinHostPort(cluster.Address, strconv.Itoa(webhookPort))); err != nil {
		t.Fatal(err)
	}
	config, err := cluster.ConfigFor(kubetest.ManagerAccount, "system:serviceaccounts", "system:authenticated")
	if err != nil {
		t.Fatal(err)
	}
	manager, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	group := &unstructured.Unstructured{}
	group.SetGroupVersionKind(gang.Kinds[0])
	group.SetNamespace(cluster.Namespace(t))
	group.SetName("theirs")
	if err := unstructured.SetNestedField(group.Object, int64(2), "spec", "minMember"); err != nil {
		t.Fatal(err)
	}
	cluster.Create(t, group)
	kubetest.Eventually(t, "the policy to be enforced", func() error {
		err := manager.Patch(t.Context(), group.DeepCopy(), client.RawPatch(types.MergePatchType, []byte(`{"spec":{"minMember":1}}`)), client.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), "PodGroups and Workloads of TrainJobs") {
			return fmt.Errorf("the patch: %w", err)
		}
		return nil
	})
}
