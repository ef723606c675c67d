// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/test/kit/kubetest"
)

var cluster *kubetest.Cluster

func TestMain(m *testing.M) {
	options := kubetest.Options{Tools: os.Getenv("DATACACHE_KUBE")}
	os.Exit(kubetest.Run(options, func(c *kubetest.Cluster) int {
		cluster = c
		return m.Run()
	}))
}

// trainJob returns a TrainJob on a stock runtime.
func trainJob(namespace, name, runtime string) *trainer.TrainJob {
	return &trainer.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: trainer.TrainJobSpec{
			RuntimeRef: trainer.RuntimeRef{Name: runtime},
			Trainer:    &trainer.Trainer{NumNodes: new(int32(2))},
		},
	}
}

func install(t *testing.T, runtimes ...string) {
	t.Helper()
	if err := cluster.InstallRuntimes(t.Context(), runtimes...); err != nil {
		t.Fatal(err)
	}
}

func create(t *testing.T, o client.Object) {
	t.Helper()
	if err := cluster.Client.Create(t.Context(), o); err != nil {
		t.Fatal(err)
	}
}

// reaches waits until the TrainJob has a condition of the kind.
func reaches(t *testing.T, job *trainer.TrainJob, condition string) {
	t.Helper()
	kubetest.Eventually(t, job.Name+" is "+condition, func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
			return err
		}
		if !meta.IsStatusConditionTrue(job.Status.Conditions, condition) {
			return fmt.Errorf("conditions %+v, jobs %+v", job.Status.Conditions, job.Status.JobsStatus)
		}
		return nil
	})
}

// pods waits until the namespace has that many pods in the phase.
func pods(t *testing.T, namespace string, count int, phase corev1.PodPhase) []corev1.Pod {
	t.Helper()
	var list corev1.PodList
	kubetest.Eventually(t, fmt.Sprintf("%d pods %s", count, phase), func() error {
		if err := cluster.Client.List(t.Context(), &list, client.InNamespace(namespace)); err != nil {
			return err
		}
		var phases []string
		for _, pod := range list.Items {
			if pod.Status.Phase == phase {
				phases = append(phases, pod.Name)
			}
		}
		if len(phases) != count || len(list.Items) != count {
			return fmt.Errorf("%d pods, of them %s: %q", len(list.Items), phase, phases)
		}
		return nil
	})
	return list.Items
}

func TestTrainJobOnStockRuntimeCompletes(t *testing.T) {
	t.Parallel()
	install(t, "torch-distributed")
	namespace := cluster.Namespace(t)
	var over atomic.Bool
	cluster.Kubelet.Play(namespace, func(*corev1.Pod) kubetest.Act {
		if over.Load() {
			return kubetest.Act{Exit: new(int32(0))}
		}
		return kubetest.Act{}
	})
	job := trainJob(namespace, "plain", "torch-distributed")
	create(t, job)
	for _, pod := range pods(t, namespace, 2, corev1.PodRunning) {
		if pod.Labels["jobset.sigs.k8s.io/replicatedjob-name"] != "node" || pod.Spec.NodeName == "" || pod.Status.PodIP == "" {
			t.Errorf("pod %s has labels %v, node %q, address %q", pod.Name, pod.Labels, pod.Spec.NodeName, pod.Status.PodIP)
		}
	}
	var set jobset.JobSet
	if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(job), &set); err != nil {
		t.Fatal(err)
	}
	over.Store(true)
	reaches(t, job, trainer.TrainJobComplete)
	if err := cluster.Client.Delete(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, "the garbage collector takes the JobSet", func() error {
		err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(job), &set)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(errors.New("it is there"), err)
	})
	pods(t, namespace, 0, corev1.PodRunning)
}

func TestTrainJobFailsWhenItsPodsDo(t *testing.T) {
	t.Parallel()
	install(t, "torch-distributed")
	namespace := cluster.Namespace(t)
	cluster.Kubelet.Play(namespace, func(*corev1.Pod) kubetest.Act {
		// More restarts than a Job's backoffLimit: so it fails without waiting for the back-off between failed pods.
		return kubetest.Act{Exit: new(int32(1)), Restarts: 7}
	})
	job := trainJob(namespace, "fails", "torch-distributed")
	create(t, job)
	reaches(t, job, trainer.TrainJobFailed)
}

// TestTrainerRefusesItsOwnCacheRuntime shows that Trainer v2.3.0 rejects TrainJobs on its own cache runtime that configure its
// initializer (facts in kubeflow/trainer #3714), which datacache must work around.
func TestTrainerRefusesItsOwnCacheRuntime(t *testing.T) {
	t.Parallel()
	install(t, "torch-distributed-with-cache")
	namespace := cluster.Namespace(t)
	job := trainJob(namespace, "cached", "torch-distributed-with-cache")
	job.Spec.Initializer = &trainer.Initializer{Dataset: &trainer.DatasetInitializer{StorageUri: new("cache://schema/table")}}
	err := cluster.Client.Create(t.Context(), job)
	const want = "must have volumeMount with name - initializer"
	if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), want) {
		t.Fatalf("creating it gives %v, want it forbidden with %q", err, want)
	}
}

func TestLeaderWorkerSetBecomesAvailable(t *testing.T) {
	t.Parallel()
	namespace := cluster.Namespace(t)
	var loaded atomic.Bool
	cluster.Kubelet.Play(namespace, func(*corev1.Pod) kubetest.Act { return kubetest.Act{Unready: !loaded.Load()} })
	template := corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "server", Image: "server"}}}}
	set := &lws.LeaderWorkerSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "cache"},
		Spec: lws.LeaderWorkerSetSpec{
			StartupPolicy:        lws.LeaderCreatedStartupPolicy,
			LeaderWorkerTemplate: lws.LeaderWorkerTemplate{Size: new(int32(3)), WorkerTemplate: template},
		},
	}
	create(t, set)
	for _, pod := range pods(t, namespace, 3, corev1.PodRunning) {
		if set := pod.Labels[lws.SetNameLabelKey]; set != "cache" {
			t.Errorf("pod %s has %s %q", pod.Name, lws.SetNameLabelKey, set)
		}
	}
	available := func() (bool, error) {
		err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(set), set)
		return meta.IsStatusConditionTrue(set.Status.Conditions, string(lws.LeaderWorkerSetAvailable)), err
	}
	if now, err := available(); now || err != nil {
		t.Fatalf("Available is %v (%v) with no pod ready", now, err)
	}
	loaded.Store(true)
	kubetest.Eventually(t, "the LeaderWorkerSet is Available", func() error {
		now, err := available()
		if !now {
			err = errors.Join(fmt.Errorf("conditions %+v", set.Status.Conditions), err)
		}
		return err
	})
}

func TestLogsThroughTheAPIServer(t *testing.T) {
	t.Parallel()
	namespace := cluster.Namespace(t)
	var step atomic.Int32
	said := []string{"", "one\n", "one\ntwo\n", "one\ntwo\nthree\n"}
	cluster.Kubelet.Play(namespace, func(*corev1.Pod) kubetest.Act {
		now := step.Load()
		act := kubetest.Act{Log: said[now]}
		switch {
		case now == 0:
			act.Waiting = "ContainerCreating"
		case int(now) == len(said)-1:
			act.Exit = new(int32(0))
		}
		return act
	})
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "talks"},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "talker", Image: "talker"}},
		},
	}
	create(t, pod)
	api, err := kubernetes.NewForConfig(cluster.Config)
	if err != nil {
		t.Fatal(err)
	}
	logs := api.CoreV1().Pods(namespace)
	kubetest.Eventually(t, "the pod is waiting", func() error {
		log, err := logs.GetLogs("talks", &corev1.PodLogOptions{}).Stream(t.Context())
		if err == nil {
			log.Close()
		}
		if err == nil || !strings.Contains(err.Error(), "waiting to start") {
			return errors.Join(errors.New("its log says another thing"), err)
		}
		return nil
	})
	step.Store(1)
	pods(t, namespace, 1, corev1.PodRunning)
	follow, err := logs.GetLogs("talks", &corev1.PodLogOptions{Follow: true}).Stream(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer follow.Close()
	step.Store(2)
	step.Store(3)
	if text, err := io.ReadAll(follow); string(text) != said[3] || err != nil {
		t.Errorf("following gives %q (%v), want %q", text, err, said[3])
	}
	pods(t, namespace, 1, corev1.PodSucceeded)
	kubeconfig, err := cluster.Kubeconfig("admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	kubectl := exec.CommandContext(t.Context(), cluster.Kubectl(), "--kubeconfig="+kubeconfig, "-n="+namespace, "logs", "talks", "--tail=2")
	if out, err := kubectl.CombinedOutput(); string(out) != "two\nthree\n" || err != nil {
		t.Errorf("kubectl logs --tail=2 gives %q (%v)", out, err)
	}
}

func TestDeletedPodLingersAsLongAsThePlaySays(t *testing.T) {
	t.Parallel()
	namespace := cluster.Namespace(t)
	var stubborn atomic.Bool
	var asked atomic.Int32 // called while it is being deleted
	stubborn.Store(true)
	cluster.Kubelet.Play(namespace, func(pod *corev1.Pod) kubetest.Act {
		if pod.DeletionTimestamp != nil {
			asked.Add(1)
		}
		return kubetest.Act{Linger: stubborn.Load()}
	})
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "stays"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "server", Image: "server"}}},
	}
	create(t, pod)
	pods(t, namespace, 1, corev1.PodRunning)
	if err := cluster.Client.Delete(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	kubetest.Eventually(t, "the kubelet has looked at it thrice more", func() error {
		if n := asked.Load(); n < 3 {
			return fmt.Errorf("%d times so far", n)
		}
		return nil
	})
	pods(t, namespace, 1, corev1.PodRunning)
	stubborn.Store(false)
	pods(t, namespace, 0, corev1.PodRunning)
}

func TestUserHasNoRightsOfItsOwn(t *testing.T) {
	t.Parallel()
	namespace := cluster.Namespace(t)
	config, err := cluster.ConfigFor("somebody", "system:authenticated")
	if err != nil {
		t.Fatal(err)
	}
	somebody, err := client.New(config, client.Options{Scheme: cluster.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	if err := somebody.List(t.Context(), &corev1.PodList{}, client.InNamespace(namespace)); !apierrors.IsForbidden(err) {
		t.Errorf("listing pods gives %v, want it forbidden", err)
	}
}

func TestUnknownRuntimeIsNamed(t *testing.T) {
	t.Parallel()
	err := cluster.InstallRuntimes(t.Context(), "torch-distribution")
	if err == nil || !strings.Contains(err.Error(), `no stock runtime "torch-distribution"`) {
		t.Errorf("got %v", err)
	}
}

func TestToolsAreAskedFor(t *testing.T) {
	t.Parallel()
	for name, tools := range map[string]string{"no variable": "", "no folder": t.TempDir()} {
		_, err := kubetest.Start(t.Context(), kubetest.Options{Tools: tools})
		if err == nil || !strings.Contains(err.Error(), "make kube-tools") {
			t.Errorf("%s: got %v, want to be told of make kube-tools", name, err)
		}
	}
}
