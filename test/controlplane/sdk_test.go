// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	"sigs.k8s.io/yaml"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// notebook is the output of sdk/notebook.py.
type notebook struct {
	Jobs map[string]struct {
		Name, Status, Runtime string
		Steps                 map[string]string
		Log, Followed         []string
		Head, Nodes           []string // logs of the cache's servers
		Reasons               []string
		Cache                 struct {
			State, Endpoint, Text string
			Rows                  int
		}
	}
	Listed   map[string]string
	Runtimes []string
	Refusal  string
}

// TestKubeflowSDK checks that the unmodified SDK 0.5.0, with only the permissions that its user needs, creates TrainJobs with caches
// and reads their status.
func TestKubeflowSDK(t *testing.T) {
	t.Parallel()
	python := os.Getenv("DATACACHE_TRAINING_PYTHON")
	if _, err := os.Stat(python); err != nil {
		t.Fatalf("DATACACHE_TRAINING_PYTHON=%q: %v: run make training-venv", python, err)
	}
	runtimes(t)
	ns := cluster.Namespace(t)
	shipped(t, ns, "torch-distributed-with-cache")
	shipped(t, ns, "torchft-with-cache")
	headsFollowPods(t, ns)
	awaitEvent := runNotebook(t, python, ns)

	type expected struct {
		runtime string
		nodes   int
		scheme  string // of the endpoint: our runtime of the KEP lets anyone read, the others' caches take known readers
	}
	want := map[string]expected{
		"a runtime with a cache step":           {"torch-distributed-with-cache", 2, "grpc"},
		"a cache of the namespace":              {"torch-distributed-with-cache", 2, "grpc"},
		"a runtime without one":                 {"torch-distributed-data-cache", 2, "grpc+tls"},
		"torchrun in each pod":                  {"torchft-with-cache", 2, "grpc+tls"},
		"no runtime, a name that the SDK chose": {"torch-distributed-data-cache", 2, "grpc+tls"},
		"the KEP's variables":                   {"torch-distributed-data-cache", 1, "grpc+tls"},
		"a generated name":                      {"torch-distributed-data-cache", 1, "grpc+tls"},
	}
	if len(awaitEvent.Jobs) != len(want) || len(awaitEvent.Listed) != len(want) {
		t.Errorf("there are %d TrainJobs, %d are listed, want %d", len(awaitEvent.Jobs), len(awaitEvent.Listed), len(want))
	}
	for form, of := range want {
		job := awaitEvent.Jobs[form]
		steps := map[string]string{wellknown.StepName: "Succeeded"}
		for node := range of.nodes {
			steps[fmt.Sprintf("node-%d", node)] = "Running"
		}
		if job.Status != "Running" || awaitEvent.Listed[job.Name] != "Running" || job.Runtime != of.runtime {
			t.Errorf("%s: %q is %q, listed as %q, on %q, want Running on %q", form, job.Name, job.Status, awaitEvent.Listed[job.Name], job.Runtime, of.runtime)
		}
		if diff := cmp.Diff(steps, job.Steps); diff != "" {
			t.Errorf("%s: its steps differ (-want +got):\n%s", form, diff)
		}
		if lines := strings.Split(gateLog, "\n"); !slices.Equal(job.Log, lines) || !slices.Equal(job.Followed, lines) {
			t.Errorf("%s: the log of its step is %q, followed %q, want %q", form, job.Log, job.Followed, lines)
		}
		serversLogs(t, form, job.Head, job.Nodes)
		for _, reason := range []string{"CacheProvisioning", "CacheReady"} {
			if !slices.Contains(job.Reasons, reason) {
				t.Errorf("%s: its events are %q, want %s among them", form, job.Reasons, reason)
			}
		}
		if job.Cache.State != "Ready" || job.Cache.Rows != tableRows || !strings.HasPrefix(job.Cache.Endpoint, of.scheme+"://") {
			t.Errorf("%s: its cache is %+v, want it Ready with %d rows at %s://", form, job.Cache, tableRows, of.scheme)
		}
	}
	for _, pod := range podsWith(t, ns, 2, client.MatchingLabels{jobset.JobSetNameKey: "torchft", wellknown.LabelReplicatedJob: wellknown.NodeName}) {
		if command := pod.Spec.Containers[0].Command; len(command) < 4 || !slices.Equal(command[:4], []string{"env", "PET_NNODES=1", "PET_STANDALONE=1", "bash"}) {
			t.Errorf("the pod %s runs %q, want the SDK's torchrun for one pod", pod.Name, command)
		}
	}
	for _, name := range []string{"torch-distributed", "torch-distributed-data-cache", "torch-distributed-with-cache"} {
		if !slices.Contains(awaitEvent.Runtimes, name) {
			t.Errorf("the runtimes are %q, want %s among them", awaitEvent.Runtimes, name)
		}
	}
	if !strings.Contains(awaitEvent.Refusal, `the schema \"\" has an empty name`) {
		t.Errorf("who asks for cache:///reviews reads %q, want what is wrong with it", awaitEvent.Refusal)
	}
	cluster.Vanish(t, &v1alpha1.DataCache{}, ns, "kep")
}

// serversLogs checks the logs of a cache's servers: those of several pods have the pod's name before each line.
func serversLogs(t *testing.T, form string, head, nodes []string) {
	t.Helper()
	if len(head) != 1 {
		t.Errorf("%s: the log of its cache's head is %q, want one line", form, head)
		return
	}
	leader, ok := strings.CutPrefix(head[0], serverLog)
	var want []string
	for i := range 2 {
		node := fmt.Sprintf("%s-%d", leader, i+1)
		want = append(want, node+"  "+serverLog+node)
	}
	if !ok || !strings.HasSuffix(leader, "-cache-0") || !slices.Equal(nodes, want) {
		t.Errorf("%s: the logs of its cache's servers are %q and %q, want %q of a head and %q", form, head, nodes, serverLog, want)
	}
}

// shipped installs one of our runtimes in a namespace: other tests use Trainer's runtime of the same name.
func shipped(t *testing.T, namespace, name string) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("..", "..", "runtimes", name+".yaml"))
	if err != nil {
		t.Fatal(err)
	}
	ours := &trainer.ClusterTrainingRuntime{}
	if err := yaml.UnmarshalStrict(text, ours); err != nil {
		t.Fatal(err)
	}
	cluster.Create(t, &trainer.TrainingRuntime{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: ours.Labels}, Spec: ours.Spec})
}

// gateLog is the log of the waiting step of every TrainJob of headsFollowPods.
const gateLog = "waiting for the cache\nthe cache is ready"

// serverLog is the log of each server of headsFollowPods, before the name of its pod.
const serverLog = "served by "

// headsFollowPods runs one real head and connects every cache of the namespace to it, whatever its name. Steps complete when they are
// started; training pods keep running.
func headsFollowPods(t *testing.T, namespace string) {
	t.Helper()
	served(t, namespace, "any")
	server := heads.of(namespace, "any")
	cluster.Kubelet.Play(namespace, func(pod *corev1.Pod) kubetest.Act {
		switch {
		case isCachePod(pod):
			heads.serve(namespace, pod.Labels[wellknown.LabelCache], server)
			return kubetest.Act{Log: serverLog + pod.Name + "\n"}
		case pod.Spec.Containers[0].Name == wellknown.StepName:
			return kubetest.Act{Exit: new(int32(0)), Log: gateLog + "\n"}
		}
		return kubetest.Act{}
	})
}

// of returns the server to which serve connected a cache.
func (n *network) of(namespace, cache string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.servers[headPod(namespace, cache)]
}

// runNotebook runs the script as a user of the namespace.
func runNotebook(t *testing.T, python, namespace string) *notebook {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	source, err := filepath.Abs(filepath.Join("..", "..", "python", "src"))
	if err != nil {
		t.Fatal(err)
	}
	var printed, said bytes.Buffer
	cmd := exec.CommandContext(ctx, python, filepath.Join("sdk", "notebook.py"), namespace)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+user(t, namespace), "PYTHONPATH="+source, "PYTHONDONTWRITEBYTECODE=1")
	cmd.Stdout, cmd.Stderr = &printed, &said
	if err := cmd.Run(); err != nil {
		t.Fatalf("sdk/notebook.py: %v\n%s", err, &said)
	}
	awaitEvent := &notebook{}
	if err := json.Unmarshal(printed.Bytes(), awaitEvent); err != nil {
		t.Fatalf("sdk/notebook.py printed %q: %v", &printed, err)
	}
	if strings.Contains(said.String(), "Unknown device") || strings.Contains(said.String(), "Traceback") {
		t.Errorf("the SDK complains:\n%s", &said)
	}
	return awaitEvent
}

// user returns the kubeconfig of a user with only the permissions that the SDK needs in the namespace. In a real cluster, users have
// these through the aggregated role edit, whose aggregation does not run here.
func user(t *testing.T, namespace string) string {
	t.Helper()
	name := "user-of-" + namespace
	role := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{trainer.GroupVersion.Group}, Resources: []string{"trainjobs"}, Verbs: []string{"create", "get", "list", "delete"}},
			{APIGroups: []string{trainer.GroupVersion.Group}, Resources: []string{"trainingruntimes"}, Verbs: []string{"get", "list"}},
			{APIGroups: []string{""}, Resources: []string{"pods", "pods/log", "events", "services"}, Verbs: []string{"get", "list", "watch"}},
			{APIGroups: []string{v1alpha1.GroupVersion.Group}, Resources: []string{"datacaches"}, Verbs: []string{"get"}},
		},
	}
	everywhere := &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: name + "-runtimes"},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{trainer.GroupVersion.Group}, Resources: []string{"clustertrainingruntimes"}, Verbs: []string{"get", "list"}}},
	}
	subjects := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: name}}
	cluster.Create(t, role)
	cluster.Create(t, everywhere)
	cluster.Create(t, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name},
	})
	cluster.Create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: everywhere.Name}, Subjects: subjects,
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: everywhere.Name},
	})
	file, err := cluster.Kubeconfig(name)
	if err != nil {
		t.Fatal(err)
	}
	return file
}
