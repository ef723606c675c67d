// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"errors"
	"fmt"
	"html"
	"maps"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/readtest"
)

// trainingWait is a way in which a TrainJob whose cache is Ready does not train.
type trainingWait struct {
	step     kubetest.Act                         // simulated state of the waiting step's pod; the zero value: it succeeds
	training kubetest.Act                         // simulated state of the training pods
	patch    *trainer.PodSpecPatch                // of the training pods
	job      func(job *trainer.TrainJob)          // edits the TrainJob
	setUp    func(t *testing.T, namespace string) // called before the TrainJob is created
	after    func(t *testing.T, pod *corev1.Pod)  // called with the pod that waits
	want     []string                             // parts of the last line of the diagnosis, of the event, of the condition and of the page
	log      string                               // part of the diagnosis that only users see: the manager reads no logs
	fails    bool                                 // the TrainJob fails, so that it has no condition any more
}

// runs is the state of a step's pod that has not ended.
var runs = kubetest.Act{Log: "waiting for the cache's head: lookup train-cache-service: no such host\n"}

var trainingWaits = map[string]trainingWait{
	"the step can't resolve its head": {
		step: runs,
		want: []string{"pod train-dataset-initializer-0-0-", "waits, though each cache", "the cluster's DNS", "port 50051"},
		log:  "its log: waiting for the cache's head: lookup train-cache-service: no such host",
	},
	"the step's image":                {step: kubetest.Act{Waiting: "ImagePullBackOff", Message: "denied"}, want: []string{"pod train-dataset-initializer-0-0-", "ImagePullBackOff: denied", "describe pod"}},
	"the step's Secret":               {step: kubetest.Act{Waiting: "CreateContainerConfigError", Message: `secret "s" not found`}, want: []string{`CreateContainerConfigError: secret "s" not found`, "create in namespace "}},
	"the step's volume":               {step: kubetest.Act{Waiting: "ContainerCreating"}, after: mountFails, want: []string{"ContainerCreating: MountVolume.SetUp failed"}},
	"the step is killed at its limit": {step: kubetest.Act{Exit: new(int32(137)), Reason: "OOMKilled"}, want: []string{"OOMKilled"}, fails: true},
	"a quota of GPUs": {
		setUp: func(t *testing.T, ns string) { t.Helper(); quota(t, ns, "requests.nvidia.com/gpu", "0") }, job: withGPU,
		want: []string{"Job train-node-0", "has 0 of 1 pods", "exceeded quota: small", "a larger quota (kubectl -n "},
	},
	"GPUs that no node has": {job: withGPU, want: []string{"pod train-node-0-0-", "Unschedulable: ", "Insufficient nvidia.com/gpu"}},
	"a node selector":       {patch: &trainer.PodSpecPatch{NodeSelector: map[string]string{"pool": "nowhere"}}, want: []string{"Unschedulable: ", "node affinity/selector"}},
	"a scheduling gate": {
		patch: &trainer.PodSpecPatch{SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/later"}}}, want: []string{"SchedulingGated: "},
	},
	"a ServiceAccount that is not there": {patch: &trainer.PodSpecPatch{ServiceAccountName: new("nobody")}, want: []string{"Job train-node-0", `serviceaccount "nobody" not found`}},
	"a policy against pods":              {setUp: deny("", "pods", "no training here"), want: []string{"Job train-node-0", "no training here"}},
	"a policy against Jobs":              {setUp: deny("batch", "jobs", "no jobs here"), want: []string{"JobSet train", "has created no more Jobs since 1 ended: ", "no jobs here"}},
	"the training's image":               {training: kubetest.Act{Waiting: "ErrImagePull", Message: "not found"}, want: []string{"pod train-node-0-0-", "ErrImagePull: not found"}},
	"the training's Secret":              {training: kubetest.Act{Waiting: "CreateContainerConfigError", Message: "no key"}, want: []string{"CreateContainerConfigError: no key", "create in namespace "}},
	"the training's volume":              {training: kubetest.Act{Waiting: "ContainerCreating"}, after: mountFails, want: []string{"pod train-node-0-0-", "ContainerCreating: MountVolume.SetUp failed"}},
	"a kubelet that takes its time":      {training: kubetest.Act{Waiting: "ContainerCreating"}, want: []string{"pod train-node-0-0-", "ContainerCreating"}},
	"a training that crashes":            {training: kubetest.Act{Exit: new(int32(1))}, want: []string{"exit code 1"}, fails: true},
	"a training out of memory":           {training: kubetest.Act{Exit: new(int32(137)), Reason: "OOMKilled"}, want: []string{"OOMKilled"}, fails: true},
}

// TestTrainingWaits checks that the diagnosis of a TrainJob whose cache is Ready names what it waits for, that a user who may only view
// the namespace gets it, and that the TrainJob's event, the DataCache's condition Read and the page of all caches say the same.
func TestTrainingWaits(t *testing.T) {
	t.Parallel()
	runtimes(t)
	admin := cluster.Namespace(t)
	allow(t, "", admin, "admin")
	page := visit(t, webhookPort).as(t, admin, "admin")
	for _, name := range slices.Sorted(maps.Keys(trainingWaits)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := trainingWaits[name]
			ns := cluster.Namespace(t)
			succeeds := kubetest.Act{Exit: new(int32(0))}
			cluster.Kubelet.Play(ns, func(pod *corev1.Pod) kubetest.Act {
				switch {
				case isCachePod(pod):
					return kubetest.Act{}
				case pod.Labels[wellknown.LabelReplicatedJob] != wellknown.StepName:
					return w.training
				case w.step == kubetest.Act{}:
					return succeeds
				}
				return w.step
			})
			if w.setUp != nil {
				w.setUp(t, ns)
			}
			served(t, ns, "train")
			job := cacheJob(ns, "train", table, tableEnv()...)
			if w.job != nil {
				w.job(job)
			}
			if w.patch != nil {
				job.Spec.RuntimePatches = append(job.Spec.RuntimePatches, patchOf(w.patch))
			}
			cluster.Create(t, job)
			cluster.DataCache(t, ns, "train", v1alpha1.StateReady)
			if w.after != nil {
				w.after(t, waitingPod(t, ns, w.step != kubetest.Act{}))
			}
			why := viewer(t, ns)
			kubetest.Eventually(t, "the diagnosis", func() error {
				said, err := why.call("why train")
				if code := (*exec.ExitError)(nil); !errors.As(err, &code) || code.ExitCode() != 2 {
					return fmt.Errorf("the exit code is not 2: %w: %s", err, said)
				}
				_, last, _ := strings.Cut(said, "WAITS")
				return lacks(last, append([]string{w.log}, w.want...))
			})
			kubetest.Eventually(t, "the event", func() error { return warned(t, job, "CacheUserWaits", w.want) })
			if !w.fails {
				shown(t, page, ns, "train", v1alpha1.ConditionRead, "TrainJobWaits", w.want)
			}
		})
	}
}

// TestTrainingStandsStill checks what is said of a TrainJob whose pods run, while no rank asks for rows.
func TestTrainingStandsStill(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	allow(t, ns, ns, "viewer-of-caches")
	page := visit(t, webhookPort).as(t, ns, "viewer-of-caches")
	cluster.Kubelet.Play(ns, func(pod *corev1.Pod) kubetest.Act {
		if pod.Labels[wellknown.LabelReplicatedJob] == wellknown.StepName {
			return kubetest.Act{Exit: new(int32(0))}
		}
		return kubetest.Act{}
	})
	flight := served(t, ns, "train")
	job := cacheJob(ns, "train", table, tableEnv()...)
	cluster.Create(t, job)
	dc := cluster.DataCache(t, ns, "train", v1alpha1.StateReady)
	why := pluginFor(t, ns)
	// read waits until the condition has the status; the cache is reconciled at once each time, not every 30 s.
	read := func(want metav1.ConditionStatus) {
		t.Helper()
		kubetest.Eventually(t, "the condition Read to be "+string(want), func() error {
			change(t, dc, func(dc *v1alpha1.DataCache) { dc.Annotations = map[string]string{"test": time.Now().String()} })
			if c := meta.FindStatusCondition(dc.Status.Conditions, v1alpha1.ConditionRead); c == nil || c.Status != want {
				return fmt.Errorf("it is %+v", c)
			}
			return nil
		})
	}
	read(metav1.ConditionFalse)
	still := []string{"no rank has asked for rows since "}
	shown(t, page, ns, "train", v1alpha1.ConditionRead, "NotRead", still)
	kubetest.Eventually(t, "the event", func() error { return warned(t, job, "CacheNotRead", still) })
	said, err := why.call("why train")
	if code := (*exec.ExitError)(nil); !errors.As(err, &code) || code.ExitCode() != 3 {
		t.Errorf("the exit code of a training that stands still is not 3: %v", err)
	}
	if err := lacks(said, []string{"?      pods of the TrainJob: 1 of 1 run; DataCache train: no rank has asked for rows since ", "fix: if the ranks neither compute"}); err != nil {
		t.Error(err)
	}

	r := readtest.New(flight)
	defer r.Close()
	if err := r.Epoch(t.Context(), 0, 0, false); err != nil {
		t.Fatal(err)
	}
	read(metav1.ConditionTrue)
	if said, err := why.call("why train"); err != nil {
		t.Errorf("a training that reads: %v: %s", err, said)
	}
}

// shown waits until a DataCache's condition is False for the reason with the parts, and the page of all caches says the same.
func shown(t *testing.T, page *visitor, namespace, name, condition, reason string, parts []string) {
	t.Helper()
	kubetest.Eventually(t, "the condition "+condition, func() error {
		dc := &v1alpha1.DataCache{}
		if err := cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, dc); err != nil {
			return err
		}
		c := meta.FindStatusCondition(dc.Status.Conditions, condition)
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != reason {
			return fmt.Errorf("it is %+v, want the reason %s", c, reason)
		}
		return lacks(c.Message, parts)
	})
	kubetest.Eventually(t, "the page", func() error {
		text, err := page.get(t.Context(), "?namespace="+namespace, http.StatusOK)
		return errors.Join(err, lacks(html.UnescapeString(text), append([]string{"<b>" + reason + "</b>"}, parts...)))
	})
}

// viewer returns the plugin as it runs for a user who has the role view in the namespace and nothing else.
func viewer(t *testing.T, namespace string) *kubectlPlugin {
	t.Helper()
	name := "viewer-of-" + namespace
	cluster.Create(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "viewer"},
		Subjects:   []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
	})
	kubeconfig, err := cluster.Kubeconfig(name)
	if err != nil {
		t.Fatal(err)
	}
	plugin := pluginFor(t, namespace)
	plugin.kubeconfig = kubeconfig
	return plugin
}

// patchOf returns a patch of a runtime's training pods.
func patchOf(pod *trainer.PodSpecPatch) trainer.RuntimePatch {
	return trainer.RuntimePatch{Manager: "test.example.com/waits", TrainingRuntimeSpec: &trainer.TrainingRuntimeSpecPatch{Template: &trainer.JobSetTemplatePatch{
		Spec: &trainer.JobSetSpecPatch{ReplicatedJobs: []trainer.ReplicatedJobPatch{{
			Name:     "node",
			Template: &trainer.JobTemplatePatch{Spec: &trainer.JobSpecPatch{Template: &trainer.PodTemplatePatch{Spec: pod}}},
		}}},
	}}}
}

func withGPU(job *trainer.TrainJob) {
	gpu := corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("1")}
	job.Spec.Trainer.ResourcesPerNode = &corev1.ResourceRequirements{Requests: gpu, Limits: gpu}
}

// deny returns a setUp that adds an admission policy against what belongs to the training.
func deny(group, resources, message string) func(*testing.T, string) {
	return func(t *testing.T, namespace string) {
		t.Helper()
		forbid(t, namespace, group, resources, `!("jobset.sigs.k8s.io/replicatedjob-name" in object.metadata.labels) || object.metadata.labels["jobset.sigs.k8s.io/replicatedjob-name"] != "node"`, message)
		labels := map[string]string{wellknown.LabelReplicatedJob: "node"}
		pod := corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "c", Image: "i"}}}
		var object client.Object = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "any", Labels: labels}, Spec: pod}
		if resources == "jobs" {
			object = &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "any", Labels: labels}, Spec: batchv1.JobSpec{Template: corev1.PodTemplateSpec{Spec: pod}}}
		}
		refuses(t, object, message)
	}
}

// waitingPod returns the pod that waits: of the step, or of the training.
func waitingPod(t *testing.T, namespace string, step bool) *corev1.Pod {
	t.Helper()
	job := "node"
	if step {
		job = wellknown.StepName
	}
	var pods corev1.PodList
	kubetest.Eventually(t, "the pod of "+job, func() error {
		err := cluster.Client.List(t.Context(), &pods, client.InNamespace(namespace), client.MatchingLabels{wellknown.LabelReplicatedJob: job})
		if err == nil && len(pods.Items) == 0 {
			err = errors.New("there is none")
		}
		return err
	})
	return &pods.Items[0]
}

// mountFails reports, as a kubelet does, that a volume of the pod can't be mounted.
func mountFails(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	cluster.Create(t, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: pod.Namespace, Name: "unmounted"},
		InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: pod.Namespace, Name: pod.Name, UID: pod.UID},
		Type:           corev1.EventTypeWarning, Reason: "FailedMount", Source: corev1.EventSource{Component: "kubelet"},
		Message:        `MountVolume.SetUp failed for volume "ca" : configmap "ca" not found`,
		FirstTimestamp: metav1.Now(), LastTimestamp: metav1.Now(), Count: 1,
	})
}
