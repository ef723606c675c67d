// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package fluid

import (
	"bufio"
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// cachesAtOnce is the number of caches created at once; 'make bench NAME=fluid' sets it to 200.
func cachesAtOnce(t *testing.T) int {
	t.Helper()
	text := cmp.Or(os.Getenv("FLUID_CACHES"), "10")
	count, err := strconv.Atoi(text)
	if err != nil || count < 1 {
		t.Fatalf("FLUID_CACHES=%q, want a number of caches", text)
	}
	return count
}

// manyAtOnce creates caches that nobody uses, all at once, and counts the requests until all are Ready. However long Fluid takes, none may fail
// meanwhile. It runs alone, since the requests of other tests would be counted too.
func manyAtOnce(t *testing.T) {
	count := cachesAtOnce(t)
	ns := newNamespace(t)
	asked.Take()
	before, began := served(t), time.Now()
	creators, ctx := errgroup.WithContext(t.Context())
	creators.SetLimit(8)
	for i := range count {
		creators.Go(func() error {
			return cluster.Client.Create(ctx, thinCache(ns, fmt.Sprintf("files-%d", i), fmt.Sprintf("s3://bucket/files-%d", i)))
		})
	}
	if err := creators.Wait(); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d caches created after %.1f s", count, time.Since(began).Seconds())
	half, look := time.Duration(0), time.NewTicker(time.Second) // looking more often would slow down what is measured
	defer look.Stop()
	kubetest.EventuallyLong(t, kubetest.Deadline+time.Duration(count)*10*time.Second, "all caches to be ready", func() error {
		<-look.C
		var caches v1alpha1.DataCacheList
		if err := cluster.Client.List(t.Context(), &caches, client.InNamespace(ns)); err != nil {
			return err
		}
		ready, other := 0, ""
		for i := range caches.Items {
			switch caches.Items[i].Status.State {
			case v1alpha1.StateReady:
				ready++
			case v1alpha1.StateFailed, v1alpha1.StateReleased:
				t.Fatalf("cache %s is %s after %s: %+v", caches.Items[i].Name, caches.Items[i].Status.State, time.Since(began), caches.Items[i].Status.Conditions)
			default:
				other = fmt.Sprintf("%s: %+v", caches.Items[i].Name, caches.Items[i].Status.Conditions)
			}
		}
		if half == 0 && ready >= count/2 {
			half = time.Since(began)
		}
		if ready != count {
			return fmt.Errorf("%d of %d are, and not %s", ready, count, other)
		}
		return nil
	})
	t.Logf("half of %d caches ready after %.1f s, all after %.1f s", count, half.Seconds(), time.Since(began).Seconds())
	total := 0
	counts := asked.Take()
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		total += counts[what]
		t.Logf("%5.1f per cache: %s", float64(counts[what])/float64(count), what)
	}
	t.Logf("%5.1f requests of datacache's manager per cache", float64(total)/float64(count))
	t.Logf("%5.1f requests of all programs per cache: Fluid, helm, Kubernetes' own controllers, the manager and this test", (served(t)-before)/float64(count))
}

// served is how many requests the API server has answered, without watches and those for leases.
func served(t *testing.T) float64 {
	t.Helper()
	reach, err := rest.HTTPClientFor(cluster.Config)
	if err != nil {
		t.Fatal(err)
	}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, cluster.Config.Host+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer, err := reach.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	sum := 0.0
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		if !strings.HasPrefix(line, "apiserver_request_total{") || strings.Contains(line, `verb="WATCH"`) || strings.Contains(line, `resource="leases"`) {
			continue
		}
		n, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64)
		if err != nil {
			t.Fatalf("the API server's metrics have the line %q: %v", line, err)
		}
		sum += n
	}
	if err := lines.Err(); err != nil || sum == 0 {
		t.Fatalf("the API server's metrics have %g requests: %v", sum, err)
	}
	return sum
}
