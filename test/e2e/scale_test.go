// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// goalPods is the size of the group of the largest cache: 1,000 data nodes and the head.
const goalPods = 1001

// TestManyPods starts a cache of E2E_PODS data nodes, each with 32 MiB for rows and clients, and prints what it takes of the cluster, and
// what a group of goalPods would take: some of it grows with the pods, the rest is the same for any number. It is not parallel, since
// requests of other tests would be counted.
func TestManyPods(t *testing.T) {
	text := os.Getenv("E2E_PODS")
	if text == "" {
		t.Skip("E2E_PODS=100 asks for it: it takes minutes and the memory of that many pods")
	}
	count, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("E2E_PODS=%q: want a number: %v", text, err)
	}
	ns := namespace(t)
	page := managerMetrics(t, ns)
	few, many := groupCost(t, ns, "few", 2, page), groupCost(t, ns, "many", count, page)
	var out strings.Builder
	fmt.Fprintf(&out, "| | %d pods | %d pods | %d pods (computed) |\n|---|---|---|---|\n", 3, count+1, goalPods)
	for i, of := range many {
		each := (of.is - few[i].is) / float64(count-2)
		fmt.Fprintf(&out, "| %s | %.0f | %.0f | %.0f |\n", of.name, few[i].is, of.is, few[i].is+each*(goalPods-3))
	}
	fmt.Print(out.String())
	if path := os.Getenv("E2E_PODS_PAGE"); path != "" {
		if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// cost is one figure of a group.
type cost struct {
	name string
	is   float64
}

// groupCost creates a cache, measures it when it is Ready and then for half a minute, and deletes it.
func groupCost(t *testing.T, ns, name string, dataNodes int, managerPage func() map[string]float64) []cost {
	t.Helper()
	dc := sharedCache(ns, reviews.write(t), ns)
	dc.Name, dc.Spec.Arrow.DataNodes, dc.Spec.Retention.IdleTTL = name, int32(dataNodes), nil
	dc.Spec.Arrow.DataNode.Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("5m"), corev1.ResourceMemory: resource.MustParse("32Mi")},
		Limits:   corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("112Mi")}, // the process itself takes 80
	}
	api, own, began := apiRequests(t), managerPage(), time.Now()
	cluster.Create(t, dc)
	pods := &corev1.PodList{}
	await(t, "the pods to run", func() error {
		if err := cluster.Client.List(t.Context(), pods, client.InNamespace(ns), client.MatchingLabels{wellknown.LabelCache: name}); err != nil {
			return err
		}
		running := 0
		for _, p := range pods.Items {
			if p.Status.Phase == corev1.PodRunning {
				running++
			}
		}
		if running != dataNodes+1 {
			return fmt.Errorf("%d of %d run", running, dataNodes+1)
		}
		return nil
	})
	run := time.Since(began)
	cluster.DataCache(t, ns, name, v1alpha1.StateReady)
	costs := []cost{
		{"seconds until all pods run", run.Seconds()}, {"seconds until the cache is Ready", time.Since(began).Seconds()},
		{"requests to the API server until then, without watches", sum(apiRequests(t)) - sum(api)},
		{"of them by datacache's manager", sum(managerPage()) - sum(own)},
	}
	const rest = 30 * time.Second
	api, own = apiRequests(t), managerPage()
	time.Sleep(rest) //nolint:forbidigo // what is measured is a cluster at rest
	costs = append(costs,
		cost{"requests a minute while nothing happens", (sum(apiRequests(t)) - sum(api)) / rest.Minutes()},
		cost{"of them by datacache's manager", (sum(managerPage()) - sum(own)) / rest.Minutes()},
		cost{"ms to look up all pods' names, one after the other", lookUp(t, ns, name, dataNodes)})
	cluster.Delete(t, dc)
	await(t, "the pods to go", func() error { return nothingRuns(t, ns) })
	return costs
}

// lookUp looks up all pods of a group, one after the other, and returns how long that takes; then the group itself.
func lookUp(t *testing.T, ns, name string, dataNodes int) (milliseconds float64) {
	t.Helper()
	text, err := os.ReadFile(cluster.folder + "/resolv.conf")
	if err != nil {
		t.Skipf("needs a cluster of hack/cluster: %v", err)
	}
	server := net.JoinHostPort(strings.Fields(string(text))[1], "53")
	resolver := &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, network, server)
	}}
	group := fmt.Sprintf("%s.%s.svc.cluster.local.", wellknown.CacheName(name), ns)
	began := time.Now()
	for i := 1; i <= dataNodes; i++ {
		pod := fmt.Sprintf("%s-0-%d.%s", wellknown.CacheName(name), i, group)
		await(t, pod+" to be found", func() error {
			found, err := resolver.LookupHost(t.Context(), pod)
			if err == nil && len(found) != 1 {
				err = fmt.Errorf("%s has the addresses %q", pod, found)
			}
			return err
		})
	}
	took := time.Since(began)
	if all, err := resolver.LookupHost(t.Context(), group); err != nil || len(all) != dataNodes+1 {
		t.Errorf("%s has %d addresses, want %d: %v", group, len(all), dataNodes+1, err)
	}
	return float64(took.Milliseconds())
}

func sum(counts map[string]float64) (total float64) {
	for _, n := range counts {
		total += n
	}
	return total
}

var sample = regexp.MustCompile(`^(?:apiserver_request_total|rest_client_requests_total)\{(.*)\} (\S+)$`)

// requests reads the counts of requests, without watches, from a page of metrics.
func requests(t *testing.T, page io.Reader) map[string]float64 {
	t.Helper()
	counts := map[string]float64{}
	lines := bufio.NewScanner(page)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		parts := sample.FindStringSubmatch(lines.Text())
		if parts == nil || strings.Contains(parts[1], `verb="WATCH"`) {
			continue
		}
		n, err := strconv.ParseFloat(parts[2], 64)
		if err != nil {
			t.Fatal(err)
		}
		counts[parts[1]] += n
	}
	if len(counts) == 0 {
		t.Fatal("the page of metrics counts no requests")
	}
	return counts
}

// apiRequests are those that the API server has counted.
func apiRequests(t *testing.T) map[string]float64 {
	t.Helper()
	page, err := cluster.logs.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return requests(t, strings.NewReader(string(page)))
}

// managerMetrics returns a function that reads how many requests datacache's manager has sent.
func managerMetrics(t *testing.T, ns string) func() map[string]float64 {
	t.Helper()
	cluster.Create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: ns + "-metrics"}, Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: account}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "datacache-metrics-reader"},
	})
	pods := &corev1.PodList{}
	if err := cluster.Client.List(t.Context(), pods, client.InNamespace(managerHome)); err != nil {
		t.Fatal(err)
	}
	token := tokenOf(t, ns, "https://kubernetes.default.svc", nil)
	transport := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}} // the manager makes its own certificate for metrics
	return func() map[string]float64 {
		counts := map[string]float64{}
		for _, p := range pods.Items { // one replica is the leader and counts requests
			if strings.HasPrefix(p.Name, "datacache-manager-") {
				counts[p.Name] = sum(managerRequests(t, &http.Client{Transport: transport}, p.Name, token))
			}
		}
		return counts
	}
}

func managerRequests(t *testing.T, client *http.Client, pod, token string) map[string]float64 {
	t.Helper()
	local, stop, err := forward(managerHome, pod, 8443)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("https://localhost:%d/metrics", local), http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Authorization", "Bearer "+token)
	answer, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		t.Fatalf("the manager's metrics: %s", answer.Status)
	}
	return requests(t, answer.Body)
}
