// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kueue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ice "github.com/apache/iceberg-go"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	apiruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	ctrlwebhook "sigs.k8s.io/controller-runtime/pkg/webhook"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/cacheserver/head"
	"github.com/kubeflow/datacache/cacheserver/local"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
	"github.com/kubeflow/datacache/controller"
	"github.com/kubeflow/datacache/internal/diagnose"
	"github.com/kubeflow/datacache/internal/inject"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/icetest"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/proctest"
	"github.com/kubeflow/datacache/webhook"
)

// network connects the manager to the head of every cache.
type network struct {
	mu     sync.Mutex
	server string // host:port; "" for none
}

func (n *network) serve(server string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.server = server
}

func (n *network) dial(ctx context.Context, pod *corev1.Pod) (net.Conn, error) {
	n.mu.Lock()
	server := n.server
	n.mu.Unlock()
	if server == "" || pod.Labels[wellknown.LabelRole] != wellknown.RoleHead {
		return nil, fmt.Errorf("nothing listens in pod %s", pod.Name)
	}
	return (&net.Dialer{}).DialContext(ctx, "tcp", server)
}

// serveChecks installs datacache with the component kueue, and runs the manager in this process, with its account's rights, until the test
// ends.
func serveChecks(t *testing.T, patience time.Duration) *network {
	t.Helper()
	address := net.JoinHostPort(cluster.Address, strconv.Itoa(webhookPort))
	if err := cluster.Install(t.Context(), cluster.Render(t, overlay), address); err != nil {
		t.Fatal(err)
	}
	reach, err := cluster.ConfigFor(kubetest.ManagerAccount, "system:serviceaccounts", "system:authenticated")
	if err != nil {
		t.Fatal(err)
	}
	scheme := apiruntime.NewScheme()
	if err := controller.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	mgr, err := ctrl.NewManager(reach, ctrl.Options{
		Scheme: scheme, Cache: controller.CacheOptions(), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller:    config.Controller{SkipNameValidation: new(true)},
		WebhookServer: ctrlwebhook.NewServer(ctrlwebhook.Options{Host: cluster.Address, Port: webhookPort, CertDir: cluster.CertDir}),
	})
	if err != nil {
		t.Fatal(err)
	}
	heads := &network{}
	if err := errors.Join(webhook.Setup(mgr, inject.Settings{}, nil), controller.Setup(t.Context(), mgr, controller.Options{
		Image: "example.com/cacheserver:test", Namespace: "datacache-system", Dial: heads.dial, Registry: prometheus.NewRegistry(),
		Kueue: true, QueuePatience: patience,
	})); err != nil {
		t.Fatal(err)
	}
	proctest.RunServer(t, func(context.Context) (proctest.Server, error) { return mgr, nil })
	if !mgr.GetCache().WaitForCacheSync(t.Context()) {
		t.Fatal("the manager's informers did not sync")
	}
	installRuntime(t)
	return heads
}

// runHead runs a real head of a small table until the test ends, with data nodes or without: then it loads for ever.
func runHead(t *testing.T, nodes bool) (web string) {
	t.Helper()
	table := icetest.Local(t).Create("reviews", 2, ice.NewSchema(0, ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64}))
	table.Append(icetest.Row{"id": 1}, icetest.Row{"id": 2})
	listen := func() net.Listener {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		return listener
	}
	store := objstore.New(objstore.Config{})
	cfg := role.Config{
		Flight: listen(), HTTP: listen(), Grace: time.Millisecond, Budget: offheap.NewBudget(1 << 28), Store: store,
		Source: &iceberg.Source{Store: store, Location: iceberg.Location{Metadata: table.Metadata()}},
		Log:    slog.New(slog.DiscardHandler), Metrics: ops.NewMetrics(),
	}
	proctest.RunServer(t, func(ctx context.Context) (proctest.Server, error) {
		if nodes {
			return local.New(ctx, local.Config{Config: cfg, Nodes: 1})
		}
		return head.New(head.Config{Config: cfg, Nodes: 1, JoinTimeout: time.Hour})
	})
	return cfg.HTTP.Addr().String()
}

// checkedJob returns a TrainJob in the queue that requests 2 cpus, besides its step, as does its cache.
func checkedJob(namespace, name string) *trainer.TrainJob {
	job := cacheJob(namespace, "")
	job.Name = name
	cpus := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
	job.Spec.Trainer.ResourcesPerNode = &corev1.ResourceRequirements{Requests: cpus, Limits: cpus}
	job.Spec.Initializer.Dataset.Env = append(job.Spec.Initializer.Dataset.Env,
		corev1.EnvVar{Name: "HEAD_CPU", Value: "1"}, corev1.EnvVar{Name: "WORKER_CPU", Value: "1"},
		corev1.EnvVar{Name: "HEAD_MEM", Value: "1Gi"}, corev1.EnvVar{Name: "WORKER_MEM", Value: "1Gi"})
	job.Spec.Initializer.Dataset.Env[1].Value = "2" // CLUSTER_SIZE
	return job
}

func completes(t *testing.T, job *trainer.TrainJob) {
	t.Helper()
	cluster.Become(t, job, job.Namespace, job.Name, "complete", func() error {
		if !meta.IsStatusConditionTrue(job.Status.Conditions, trainer.TrainJobComplete) {
			return fmt.Errorf("suspend %v: %+v", ptr.Deref(job.Spec.Suspend, false), job.Status.Conditions)
		}
		return nil
	})
}

// TestCheckWhileItLoads: a TrainJob whose cache loads for longer than waitForPodsReady's timeout is not admitted before that, and so not evicted.
// KUEUE_LOAD sets how long it loads.
func TestCheckWhileItLoads(t *testing.T) {
	load := 7 * time.Second
	if text := os.Getenv("KUEUE_LOAD"); text != "" {
		var err error
		if load, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	heads := serveChecks(t, time.Hour)
	var loaded atomic.Bool
	heads.serve(runHead(t, false))
	ns := cluster.Namespace(t)
	cluster.Kubelet.Play(ns, func(pod *corev1.Pod) kubetest.Act {
		act := kubetest.Succeed(pod)
		act.Unready = pod.Spec.Containers[0].ReadinessProbe != nil && !loaded.Load() // of the cache's pods only
		return act
	})
	makeQueue(t, ns, "100", map[string]any{"name": "datacache"})
	job := checkedJob(ns, "train")
	cluster.Create(t, job)
	cluster.DataCache(t, ns, "train", v1alpha1.StateLoading)
	countedOnce(t, ns)
	kubetest.Eventually(t, "the diagnosis", func() error {
		findings, err := diagnose.Why(t.Context(), cluster.Client, nil, client.ObjectKeyFromObject(job))
		if err != nil {
			return err
		}
		text := fmt.Sprintf("%+v", findings)
		if cause := diagnose.Cause(findings); cause == nil || !strings.HasPrefix(cause.String(), "DataCache "+ns+"/train: Loading: ") ||
			!strings.Contains(text, "suspended: Kueue has reserved its quota, and waits; AdmissionCheck datacache: DataCache "+ns+"/train: Loading") {
			return fmt.Errorf("it is %s", text)
		}
		return nil
	})
	kubetest.Eventually(t, "the Workloads to be as old as podsTime", func() error {
		workloads, err := workloadsIn(t, ns)
		for i := range workloads {
			err = errors.Join(err, age(t, &workloads[i]))
		}
		return err
	})
	for end := time.Now().Add(load); time.Now().Before(end); time.Sleep(200 * time.Millisecond) { //nolint:forbidigo // nothing happens meanwhile
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
			t.Fatal(err)
		}
		if !ptr.Deref(job.Spec.Suspend, false) {
			t.Fatal("the TrainJob runs before its cache is loaded")
		}
	}
	if found := evictions(t, ns); found != "" {
		t.Errorf("evicted while the cache loaded for %s: %s", load, found)
	}
	heads.serve(runHead(t, true))
	loaded.Store(true)
	completes(t, job)
	if found := evictions(t, ns); found != "" {
		t.Errorf("evicted: %s", found)
	}
}

// evictions says which Workloads Kueue has evicted, why, and how often; "" if none.
func evictions(t *testing.T, namespace string) (text string) {
	t.Helper()
	workloads, err := workloadsIn(t, namespace)
	if err != nil {
		t.Fatal(err)
	}
	for _, workload := range workloads {
		found, _, err := unstructured.NestedSlice(workload.Object, "status", "schedulingStats", "evictions")
		if err != nil {
			t.Fatal(err)
		}
		for _, eviction := range found {
			text += fmt.Sprintf("%s: %v; ", workload.GetName(), eviction)
		}
	}
	return text
}

// countedOnce checks that the cache is a workload of its own, with its 2 pods, and that the TrainJob's has only the step and a training pod.
func countedOnce(t *testing.T, namespace string) {
	t.Helper()
	kubetest.Eventually(t, "the workloads of the TrainJob and its cache", func() error {
		list := &unstructured.UnstructuredList{}
		list.SetGroupVersionKind(object("WorkloadList", "", "", nil).GroupVersionKind())
		if err := cluster.Client.List(t.Context(), list, client.InNamespace(namespace)); err != nil {
			return err
		}
		var counts []string
		for i := range list.Items {
			sets, _, err := unstructured.NestedSlice(list.Items[i].Object, "spec", "podSets")
			if err != nil {
				return err
			}
			pods := int64(0)
			for _, set := range sets {
				count, _, err := unstructured.NestedInt64(set.(map[string]any), "count")
				if err != nil {
					return err
				}
				pods += count
			}
			kind := "nobody"
			if owners := list.Items[i].GetOwnerReferences(); len(owners) > 0 {
				kind = owners[0].Kind
			}
			counts = append(counts, fmt.Sprintf("%s: %d", kind, pods))
		}
		slices.Sort(counts)
		if got := strings.Join(counts, ", "); got != "LeaderWorkerSet: 2, TrainJob: 2" {
			return fmt.Errorf("pods by owner: %s", got)
		}
		return nil
	})
}

// TestCheckGivesQuotaBack: the quota is reserved for two TrainJobs and leaves no room for the caches of both, though there is room for one
// with its cache. One gives its quota back, and both train.
func TestCheckGivesQuotaBack(t *testing.T) {
	heads := serveChecks(t, 4*time.Second)
	heads.serve(runHead(t, true))
	ns := cluster.Namespace(t)
	cluster.Kubelet.Play(ns, kubetest.Succeed)
	jobs := []*trainer.TrainJob{checkedJob(ns, "first"), checkedJob(ns, "second")}
	for _, job := range jobs {
		cluster.Create(t, job)
		kubetest.Eventually(t, "its workload", func() error { _, err := workloadOf(t, ns, job); return err })
	}
	makeQueue(t, ns, "5", map[string]any{"name": "datacache"}) // 2.1 for each TrainJob, 2 for a cache
	for _, job := range jobs {
		completes(t, job)
	}
	if found := evictions(t, ns); !strings.Contains(found, "Deactivated") || strings.Contains(found, "PodsReadyTimeout") {
		t.Errorf("evictions: %s; want one since quota was given back, and none after a timeout", found)
	}
}
