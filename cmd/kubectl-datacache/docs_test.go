// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta/testrestmapper"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/diagnose"
	"github.com/kubeflow/datacache/internal/doctor"
	"github.com/kubeflow/datacache/internal/view"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// noon is when the examples of docs/kubectl.md were printed.
var noon = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

// examples print what docs/kubectl.md shows, by command.
var examples = map[string]func(t *testing.T, out io.Writer) error{
	"list -A": func(_ *testing.T, out io.Writer) error {
		ready := cacheOf("team-b", "reviews", 4*24*time.Hour, "Ready", "Loaded", "")
		ready.Status.LoadedPercent, ready.Status.Rows, ready.Status.Bytes, ready.Status.Users = new(int32(100)), new(int64(1000)), new(int64(16_000)), 3
		loading := cacheOf("team-a", "train", 2*time.Minute, "Loading", "Loading", "")
		loading.Status.LoadedPercent, loading.Status.Rows, loading.Status.Bytes, loading.Status.Users = new(int32(40)), new(int64(400_000)), new(int64(1_200_000_000)), 1
		return printList(out, []v1alpha1.DataCache{*loading, *ready}, noon)
	},
	"status train -w": func(_ *testing.T, out io.Writer) error {
		loading := func(percent int32, message string) *v1alpha1.DataCache {
			dc := cacheOf("team-a", "train", time.Minute, "Loading", "Loading", message)
			dc.Status.LoadedPercent = &percent
			return dc
		}
		printStatus(out, loading(40, "loading 40% (4/10 splits)"))
		printChange(out, noon.Add(-89*time.Minute+7*time.Second), stateOf(loading(70, "loading 70% (7/10 splits)")))
		ready := cacheOf("team-a", "train", time.Minute, "Ready", "Loaded", "all 1000000 rows are in memory")
		printChange(out, noon.Add(-89*time.Minute+12*time.Second), stateOf(ready))
		return nil
	},
	"why train":                         whyExample,
	"top train":                         topExample,
	"events train":                      eventsExample,
	"doctor --pods=false":               doctorExample,
	"logs train --server node --tail 1": logsExample,
	"ui":                                cachesExample,
	"ui train": func(_ *testing.T, out io.Writer) error {
		printPage(out, "train-cache-0", "127.0.0.1:41873")
		return nil
	},
}

// writer calls itself with what is written.
type writer func(text []byte)

func (w writer) Write(text []byte) (int, error) {
	w(text)
	return len(text), nil
}

// cachesExample serves the page of caches until its address is printed. Port and random part are those of the docs.
func cachesExample(t *testing.T, out io.Writer) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := &cobra.Command{}
	cmd.SetContext(ctx)
	cmd.SetOut(writer(func(text []byte) {
		cancel()
		_, _ = out.Write(regexp.MustCompile(`127\.0\.0\.1:\d+/[A-Z2-7]{26}/`).ReplaceAll(text, []byte("127.0.0.1:38417/K3TZ6EJMR5JQ4XQZJH2FQW7VNA/")))
	}))
	return holding(t).serveCaches(cmd, "team-a", 0)
}

// TestExamplesOfTheDocs checks that what docs/kubectl.md shows is what the commands print.
func TestExamplesOfTheDocs(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/kubectl.md")
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile("(?s)\n```\n\\$ kubectl datacache ([^\n]*)\n(.*?)```\n").FindAllStringSubmatch(string(text), -1)
	for _, block := range shown {
		command, want := block[1], block[2]
		example := examples[command]
		if example == nil {
			t.Errorf("no test prints what docs/kubectl.md shows for %q", command)
			continue
		}
		var out bytes.Buffer
		if err := example(t, &out); err != nil {
			t.Errorf("%s: %v", command, err)
		}
		got := regexp.MustCompile(` +\n`).ReplaceAllString(out.String(), "\n")
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("docs/kubectl.md shows another output of %q (-docs +printed):\n%s", command, diff)
		}
	}
	if len(shown) != len(examples) {
		t.Errorf("docs/kubectl.md has %d examples, want the %d that are tested", len(shown), len(examples))
	}
}

// cacheOf returns a DataCache that was created some time before noon.
func cacheOf(namespace, name string, age time.Duration, state v1alpha1.State, reason, message string) *v1alpha1.DataCache {
	status := metav1.ConditionFalse
	if state == v1alpha1.StateReady {
		status = metav1.ConditionTrue
	}
	return &v1alpha1.DataCache{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, CreationTimestamp: metav1.NewTime(noon.Add(-age))},
		Spec:       v1alpha1.DataCacheSpec{Arrow: &v1alpha1.ArrowCache{Table: "demo.reviews"}},
		Status: v1alpha1.DataCacheStatus{State: state, Conditions: []metav1.Condition{
			{Type: v1alpha1.ConditionReady, Status: status, Reason: reason, Message: message},
		}},
	}
}

// holding returns a cluster that has the objects.
func holding(t *testing.T, objects ...client.Object) *cluster {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, trainer.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return &cluster{WithWatch: fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build(), namespace: "team-a"}
}

func trainJob() *trainer.TrainJob {
	return &trainer.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "train", UID: "1"},
		Spec: trainer.TrainJobSpec{
			RuntimeRef:  trainer.RuntimeRef{Name: "torch-distributed-data-cache"},
			Initializer: &trainer.Initializer{Dataset: &trainer.DatasetInitializer{StorageUri: new("cache://demo/reviews")}},
		},
	}
}

func whyExample(t *testing.T, out io.Writer) error {
	t.Helper()
	waits := cacheOf("team-a", "train", time.Minute, "Pending", "ImagePullBackOff", "pod train-cache-0: ...")
	findings, err := diagnose.Why(t.Context(), holding(t, trainJob(), twin(), waits), nil, client.ObjectKey{Namespace: "team-a", Name: "train"})
	printFindings(out, findings, "WAITS")
	return err
}

// doctorExample examines a cluster without a manager.
func doctorExample(t *testing.T, out io.Writer) error {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, trainer.AddToScheme, jobset.AddToScheme, lws.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return err
		}
	}
	full := corev1.ResourceList{"requests.memory": resource.MustParse("64Gi")}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "team"}, Status: corev1.ResourceQuotaStatus{Hard: full, Used: full}}
	answers := interceptor.Funcs{Create: func(_ context.Context, _ client.WithWatch, object client.Object, _ ...client.CreateOption) error {
		if _, job := object.(*trainer.TrainJob); job {
			return errors.New("CLUSTER_SIZE must be an integer")
		}
		return nil
	}}
	c := fake.NewClientBuilder().WithScheme(scheme).WithRESTMapper(testrestmapper.TestOnlyStaticRESTMapper(scheme)).WithObjects(twin(), quota).WithInterceptorFuncs(answers).Build()
	findings, err := (&doctor.Doctor{Client: c, Namespace: "team-a"}).Examine(t.Context())
	printFindings(out, findings, "FAILS")
	return err
}

// twin returns a runtime whose TrainJobs wait for a cache.
func twin() *trainer.ClusterTrainingRuntime {
	step := jobset.ReplicatedJob{Name: wellknown.StepName}
	step.Template.Spec.Template.Spec.Containers = []corev1.Container{{Name: wellknown.StepName}}
	rt := &trainer.ClusterTrainingRuntime{ObjectMeta: metav1.ObjectMeta{Name: "torch-distributed-data-cache", Labels: map[string]string{wellknown.LabelGate: "true"}}}
	rt.Spec.Template.Spec.ReplicatedJobs = []jobset.ReplicatedJob{step}
	return rt
}

func topExample(_ *testing.T, out io.Writer) error {
	u := &cacheUsage{Namespace: "team-a", Name: "train", State: "Ready"}
	s := sample{before: &view.HeadStatus{}, after: &view.HeadStatus{}, elapsed: 5 * time.Second}
	for i, client := range []string{"10.244.1.7", "10.244.2.9"} {
		n := view.NodeStatus{Index: i, State: "Ready", Rows: 500_000}
		n.Memory.Used, n.Memory.Limit = 560<<20, 2<<30
		s.after.Nodes = append(s.after.Nodes, n)
		s.after.Readers = append(s.after.Readers, view.Reader{
			ReaderKey: view.ReaderKey{Job: "train", Rank: i, Client: client}, Streams: 2, Rows: 5 * 206_000, Bytes: 5 * 240 << 20,
			ClientMS: []int64{8100, 7900}[i], NodeMS: 600,
		})
	}
	u.add("train-cache-0", &s)
	return printTop(out, []*cacheUsage{u}, true)
}

func eventsExample(t *testing.T, out io.Writer) error {
	t.Helper()
	event := func(name string, ago time.Duration, kind, about, reason, message string) *corev1.Event {
		return &corev1.Event{
			ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name}, Type: corev1.EventTypeNormal, Reason: reason, Message: message,
			InvolvedObject: corev1.ObjectReference{Kind: kind, Namespace: "team-a", Name: about}, LastTimestamp: metav1.NewTime(noon.Add(-ago)),
		}
	}
	dc := cacheOf("team-a", "train", time.Minute, "Ready", "Loaded", "")
	dc.Status.UsedBy = []string{"team-a/train"}
	c := holding(t, dc,
		event("1", 2*time.Minute, "TrainJob", "train", "CacheProvisioning", "cache train: starting a head and 2 data nodes"),
		event("2", 2*time.Minute, "Pod", "train-cache-0", "Scheduled", "Successfully assigned team-a/train-cache-0 to node-a"),
		event("3", 95*time.Second, "TrainJob", "train", "CacheReady", "cache train: all 1000000 rows are in memory, at grpc://..."),
	)
	found, _, err := c.events(t.Context(), "train")
	if err != nil {
		return err
	}
	return printEvents(out, found.Items, noon)
}

func logsExample(t *testing.T, out io.Writer) error {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		second := "2"
		if strings.Contains(r.URL.Path, "/train-cache-0-2/") {
			second = "1"
		}
		_, _ = io.WriteString(w, "time=2026-01-31T10:31:1"+second+"Z level=INFO msg=\"all splits are loaded\"\n")
	}))
	t.Cleanup(server.Close)
	core, err := corev1client.NewForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		return err
	}
	var pods []corev1.Pod
	for _, name := range []string{"train-cache-0-1", "train-cache-0-2"} {
		pods = append(pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: name, Labels: map[string]string{wellknown.LabelRole: wellknown.RoleNode}}})
	}
	return (&cluster{core: core}).logs(context.WithoutCancel(t.Context()), pods, corev1.PodLogOptions{}, out)
}
