// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	goruntime "runtime"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// mostRequests is the maximum number of API requests for a TrainJob over its lifetime. 18 are usual: 7 objects created and 1 deleted,
// 5 or more events, and a status update for each observed change. A slow machine observes more changes, and a loop of reconciliations
// would make many more requests.
const mostRequests = 40

// jobsAtOnce is the number of TrainJobs created at once; 'make scale' sets it to 500.
func jobsAtOnce(t *testing.T) int {
	t.Helper()
	text := cmp.Or(os.Getenv("CACHES"), "20")
	jobs, err := strconv.Atoi(text)
	if err != nil || jobs < 1 {
		t.Fatalf("CACHES=%q, want a number of TrainJobs", text)
	}
	return jobs
}

// TestRequestsPerJob counts the requests for jobs that are all created at once. It is not parallel, since the requests of other tests
// would be counted too.
func TestRequestsPerJob(t *testing.T) {
	jobs := jobsAtOnce(t)
	runtimes(t)
	ns := cluster.Namespace(t)
	var trained atomic.Bool
	cluster.Kubelet.Play(ns, func(pod *corev1.Pod) kubetest.Act {
		if !isCachePod(pod) && trained.Load() {
			return kubetest.Act{Exit: new(int32(0))}
		}
		return kubetest.Act{}
	})
	var names []string
	for i := range jobs {
		names = append(names, fmt.Sprintf("train-%d", i))
	}
	served(t, ns, names...)
	asked.Take()
	failed, begun := reconcileErrors(t), time.Now()
	creators, ctx := errgroup.WithContext(t.Context())
	creators.SetLimit(8)
	for _, name := range names {
		creators.Go(func() error {
			return cluster.Client.Create(ctx, cacheJob(ns, name, "cache://demo/reviews", tableEnv()...))
		})
	}
	if err := creators.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d TrainJobs created after %v", jobs, time.Since(begun).Round(time.Millisecond))
	all(t, ns, jobs, v1alpha1.StateReady)
	t.Logf("all caches ready after %v", time.Since(begun).Round(time.Millisecond))
	trained.Store(true)
	all(t, ns, jobs, v1alpha1.StateReleased)
	counts := asked.Take()
	for _, what := range []string{"GET jobs", "GET jobsets", "GET pods", "GET events"} { // of TrainJobs that wait longer than the tests' Patience
		t.Logf("%5.1f per job, not counted: %s", float64(counts[what])/float64(jobs), what)
		delete(counts, what)
	}
	total := 0
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		total += counts[what]
		t.Logf("%5.1f per job: %s", float64(counts[what])/float64(jobs), what)
	}
	t.Logf("%5.1f requests per TrainJob", float64(total)/float64(jobs))
	t.Logf("%5.0f reconciliations ended with an error, and were done again", reconcileErrors(t)-failed)
	var memory goruntime.MemStats
	goruntime.ReadMemStats(&memory)
	t.Logf("%d MiB of memory from the system: the manager, the played kubelet and this test", (memory.Sys-memory.HeapReleased)>>20)
	if total > jobs*mostRequests {
		t.Errorf("%d requests for %d TrainJobs, want at most %d each", total, jobs, mostRequests)
	}
	for what := range counts {
		if strings.HasPrefix(what, "GET ") && counts[what] > 2*jobs { // the webhook sends one, for a DataCache with the job's name
			t.Errorf("%d times %s: reading is for informers", counts[what], what)
		}
	}
}

// reconcileErrors is the managers' count of reconciliations that ended with an error.
func reconcileErrors(t *testing.T) float64 {
	t.Helper()
	families, err := ctrlmetrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		if family.GetName() != "controller_runtime_reconcile_errors_total" {
			continue
		}
		for _, m := range family.GetMetric() {
			sum += m.GetCounter().GetValue()
		}
	}
	return sum
}

// all waits until every DataCache of the namespace is in the state.
func all(t *testing.T, namespace string, count int, state v1alpha1.State) {
	t.Helper()
	deadline := kubetest.Deadline + time.Duration(count)*2*time.Second
	kubetest.EventuallyLong(t, deadline, fmt.Sprintf("%d DataCaches are %s", count, state), func() error {
		var caches v1alpha1.DataCacheList
		if err := cluster.Client.List(t.Context(), &caches, client.InNamespace(namespace)); err != nil {
			return err
		}
		is := 0
		for _, dc := range caches.Items {
			if dc.Status.State == state {
				is++
			}
		}
		if is != count {
			return fmt.Errorf("%d of %d are", is, len(caches.Items))
		}
		return nil
	})
}
