// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/kubeflow/datacache/objectcache/buckets"
	"github.com/kubeflow/datacache/objectcache/kube"
	"github.com/kubeflow/datacache/objectcache/router"
	"github.com/kubeflow/datacache/objectcache/serve"
	"github.com/kubeflow/datacache/objectcache/store"
	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

const (
	home     = "datacache-object-cache" // namespace, Service and ServiceAccount of manifests/object-cache
	audience = "datacache-object-cache" // the default of --audience
)

var (
	cluster *kubetest.Cluster
	clients kubernetes.Interface
	binary  string // the program
)

func TestMain(m *testing.M) {
	options := kubetest.Options{Tools: os.Getenv("DATACACHE_KUBE")}
	os.Exit(proctest.Run("cluster", false, func(built string) int {
		binary = built
		return kubetest.Run(options, func(c *kubetest.Cluster) int {
			cluster = c
			if err := install(); err != nil {
				fmt.Fprintln(os.Stderr, "cluster:", err)
				return 1
			}
			return m.Run()
		})
	}, "objectcache"))
}

// install applies manifests/object-cache as users do.
func install() (err error) {
	if clients, err = kubernetes.NewForConfig(cluster.Config); err != nil {
		return err
	}
	admin, err := cluster.Kubeconfig("admin", "system:masters")
	if err != nil {
		return err
	}
	apply := exec.Command(cluster.Kubectl(), "--kubeconfig", admin, "apply", "-k", "../../../manifests/object-cache") //nolint:noctx // TestMain has no context
	if text, err := apply.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w", text, err)
	}
	return nil
}

// client returns an API client with the permissions that manifests/object-cache grants.
func client(t *testing.T, service string) *kube.Client {
	t.Helper()
	file, err := cluster.Kubeconfig("system:serviceaccount:" + home + ":" + home)
	if err != nil {
		t.Fatal(err)
	}
	c, err := kube.New(kube.Config{
		Kubeconfig: file, Audience: audience, Namespace: home, Service: service, Port: "objects",
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// account creates a namespace with a ServiceAccount "worker".
func account(t *testing.T) (namespace string) {
	t.Helper()
	namespace = cluster.Namespace(t)
	worker := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "worker"}}
	if _, err := clients.CoreV1().ServiceAccounts(namespace).Create(t.Context(), worker, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return namespace
}

// token requests a token of a namespace's worker, as the kubelet does for a projected volume; pod may be nil.
func token(t *testing.T, namespace, audience string, pod *corev1.Pod) string {
	t.Helper()
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: []string{audience}}}
	if pod != nil {
		request.Spec.BoundObjectRef = &authenticationv1.BoundObjectReference{Kind: "Pod", APIVersion: "v1", Name: pod.Name, UID: pod.UID}
	}
	made, err := clients.CoreV1().ServiceAccounts(namespace).CreateToken(t.Context(), "worker", request, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made.Status.Token
}

// runPod creates a pod of a namespace's worker.
func runPod(t *testing.T, namespace, name string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       corev1.PodSpec{ServiceAccountName: "worker", Containers: []corev1.Container{{Name: "main", Image: "image"}}},
	}
	made, err := clients.CoreV1().Pods(namespace).Create(t.Context(), pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func deletePod(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	if err := clients.CoreV1().Pods(pod.Namespace).Delete(t.Context(), pod.Name, now); err != nil {
		t.Fatal(err)
	}
}

// startServer runs an object cache whose bucket "team" is open to one namespace and "open" to all, and returns its address.
func startServer(t *testing.T, team string) string {
	t.Helper()
	config := buckets.Config{TotalLimit: 1 << 20, Buckets: map[string]buckets.Bucket{
		"open": {Name: "open", Public: true, Quota: 1 << 20},
		"team": {Name: "team", Quota: 1 << 20, AllowNamespaces: []string{team}},
	}}
	objects, err := store.Open(store.Config{Dir: t.TempDir(), Limits: store.Limits{Total: 1 << 20, Quotas: map[string]int64{"open": 1 << 20, "team": 1 << 20}}})
	if err != nil {
		t.Fatal(err)
	}
	server := serve.New(serve.Config{
		Store: objects, Router: router.New("here"), Reviewer: client(t, home), Grace: time.Minute, Log: slog.New(slog.DiscardHandler),
		Buckets: func() buckets.Config { return config }, BucketsRejected: func() bool { return false },
	})
	server.Open()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- server.Serve(ctx, listener) }()
	t.Cleanup(func() {
		cancel()
		if err := <-served; err != nil {
			t.Error(err)
		}
		objects.Close()
	})
	return "http://" + listener.Addr().String()
}

// ask sends a request with a token and returns the status. It retries if the token could not be reviewed, as may happen on a busy
// machine.
func ask(t *testing.T, method, url, token string) (status int) {
	t.Helper()
	deadline.Until(t, "a review of the token", func() bool {
		status = try(t, method, url, token)
		return status != http.StatusServiceUnavailable
	})
	return status
}

func try(t *testing.T, method, url, token string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader("body"))
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if _, err := io.Copy(io.Discard, response.Body); err != nil {
		t.Fatal(err)
	}
	return response.StatusCode
}

func TestWhoMay(t *testing.T) {
	t.Parallel()
	team, other := account(t), account(t)
	url := startServer(t, team) + "/v1/objects/"
	pod, gone := runPod(t, team, "stays"), runPod(t, team, "goes")
	ofGone := token(t, team, audience, gone)
	deletePod(t, gone)
	tampered := []byte(token(t, team, audience, pod))
	tampered[len(tampered)-10] ^= 1

	tests := map[string]struct {
		method, target, token string
		want                  int
	}{
		"its own bucket, write":       {"PUT", "team/x", token(t, team, audience, pod), 201},
		"its own bucket, not bound":   {"GET", "team/none", token(t, team, audience, nil), 404},
		"another's bucket":            {"GET", "team/x", token(t, other, audience, nil), 403},
		"another's bucket, not there": {"HEAD", "team/none", token(t, other, audience, nil), 403},
		"a public bucket":             {"PUT", "open/x", token(t, other, audience, nil), 201},
		"no such bucket":              {"GET", "none/x", token(t, team, audience, pod), 403},
		"another audience":            {"GET", "team/x", token(t, team, "someone-else", pod), 401},
		"the API server's audience":   {"GET", "team/x", token(t, team, "https://kubernetes.default.svc", pod), 401},
		"a pod that is gone":          {"GET", "team/x", ofGone, 401},
		"tampered with":               {"GET", "team/x", string(tampered), 401},
		"no token at all":             {"GET", "team/x", "not-a-token", 401},
		"none":                        {"GET", "team/x", "", 401},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := ask(t, test.method, url+test.target, test.token); got != test.want {
				t.Errorf("%s %s: %d, want %d", test.method, test.target, got, test.want)
			}
		})
	}
}

// TestATokenDiesWithItsPod waits for as long as a review is cached.
func TestATokenDiesWithItsPod(t *testing.T) {
	t.Parallel()
	team := account(t)
	url := startServer(t, team) + "/v1/objects/team/x"
	pod := runPod(t, team, "goes")
	its := token(t, team, audience, pod)
	if got := ask(t, "GET", url, its); got != 404 {
		t.Fatalf("while the pod lives: %d, want 404", got)
	}
	deletePod(t, pod)
	deadline.Until(t, "the token to end with its pod", func() bool { return ask(t, "GET", url, its) == 401 })
}

// slice creates or replaces an EndpointSlice of a Service; nodes whose names begin with "not-" are not ready.
func slice(t *testing.T, service, name string, nodes ...string) {
	t.Helper()
	made := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{
			{Name: new("metrics"), Port: new(int32(8080))}, {Name: new("objects"), Port: new(int32(8000))},
		},
	}
	for i, node := range nodes {
		made.Endpoints = append(made.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{fmt.Sprintf("10.1.0.%d", i+1)}, NodeName: new(node),
			Conditions: discoveryv1.EndpointConditions{Ready: new(!strings.HasPrefix(node, "not-"))},
			Zone:       new("zone-of-" + node),
		})
	}
	api := clients.DiscoveryV1().EndpointSlices(home)
	if _, err := api.Update(t.Context(), made, metav1.UpdateOptions{}); err == nil {
		return
	}
	if _, err := api.Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// membership records what a Watch reported last.
type membership struct {
	mu      sync.Mutex
	told    bool
	first   []router.Member // of the first report
	members []router.Member
}

func (s *membership) set(members []router.Member, _ []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.told {
		s.first = members
	}
	s.told, s.members = true, members
}

// becomes waits until the members are those of the nodes, each at port 8000.
func (s *membership) becomes(t *testing.T, nodes ...string) {
	t.Helper()
	check := func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		got := map[string]bool{}
		for _, m := range s.members {
			got[m.Name] = strings.HasSuffix(m.Address, ":8000") && m.Zone == "zone-of-"+m.Name
		}
		for _, node := range nodes {
			if !got[node] {
				return fmt.Errorf("members %v, want %v", s.members, nodes)
			}
		}
		if !s.told || len(s.members) != len(nodes) {
			return fmt.Errorf("members %v, told %v, want %v", s.members, s.told, nodes)
		}
		return nil
	}
	deadline.Eventually(t, check)
}

func TestWhoSharesTheKeys(t *testing.T) {
	t.Parallel()
	const service = "of-the-test"
	slice(t, "another-service", "stranger", "node-x")
	ctx, cancel := context.WithCancel(t.Context())
	var s membership
	watching := client(t, service)
	done := make(chan struct{})
	go func() {
		defer close(done)
		watching.Watch(ctx, s.set)
	}()
	s.becomes(t) // it is known that there are none
	slice(t, service, "first", "node-a", "not-yet", "node-b")
	s.becomes(t, "node-a", "node-b")
	slice(t, service, "second", "node-c")
	s.becomes(t, "node-a", "node-b", "node-c")
	slice(t, service, "first", "not-a", "not-yet", "node-b")
	s.becomes(t, "node-b", "node-c")
	if err := clients.DiscoveryV1().EndpointSlices(home).Delete(t.Context(), "second", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	s.becomes(t, "node-b")
	cancel()
	<-done
}

// TestTheFirstReportIsWhole watches a Service that has many EndpointSlices already.
func TestTheFirstReportIsWhole(t *testing.T) {
	t.Parallel()
	const service = "with-many"
	var nodes []string
	for i := range 50 {
		nodes = append(nodes, fmt.Sprintf("node-%d", i))
		slice(t, service, fmt.Sprintf("many-%d", i), nodes[i])
	}
	ctx, cancel := context.WithCancel(t.Context())
	var s membership
	done := make(chan struct{})
	go func() {
		defer close(done)
		client(t, service).Watch(ctx, s.set)
	}()
	s.becomes(t, nodes...)
	cancel()
	<-done
	if len(s.first) != len(nodes) {
		t.Errorf("the first report has %d members, want all %d", len(s.first), len(nodes))
	}
}

func TestItsRightsEndThere(t *testing.T) {
	t.Parallel()
	config, err := cluster.ConfigFor("system:serviceaccount:" + home + ":" + home)
	if err != nil {
		t.Fatal(err)
	}
	its, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := its.CoreV1().Secrets(home).List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("the object cache may list Secrets")
	}
	if _, err := its.DiscoveryV1().EndpointSlices("default").List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("the object cache may list EndpointSlices of other namespaces")
	}
}
