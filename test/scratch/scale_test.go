// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"bufio"
	"cmp"
	"fmt"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/internal/claim"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/promtest"
)

const (
	metricsPort = 19462
	scaleClass  = "scale" // its volumes are never provisioned
)

// setting returns a number from the environment; 'make scale' sets them.
func setting(t *testing.T, name, fallback string) int {
	t.Helper()
	value, err := strconv.Atoi(cmp.Or(os.Getenv(name), fallback))
	if err != nil || value < 1 {
		t.Fatalf("%s=%q, want a number", name, os.Getenv(name))
	}
	return value
}

// TestScale checks that claims are created in the order of their pods and no faster than the rate, with two requests each, and that
// pods whose claims exist take no token. It prints how fast Kubernetes' own controllers create claims.
func TestScale(t *testing.T) {
	count, rate := setting(t, "CLAIMS", "60"), setting(t, "CLAIM_QPS", "30")
	install(t, webhookOverlay)
	class := &storagev1.StorageClass{
		ObjectMeta: metav1.ObjectMeta{Name: scaleClass}, Provisioner: "kubernetes.io/no-provisioner", VolumeBindingMode: new(storagev1.VolumeBindingWaitForFirstConsumer),
	}
	if err := cluster.Client.Create(t.Context(), class); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	ns := cluster.Namespace(t)
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "job"}} // its kind is one that the manager may not read
	cluster.Create(t, owner)
	made := watchArrivals(t, ns)
	began := time.Now()
	createPods(t, count, func(i int) *corev1.Pod { return gatedPod(t, owner, i) })
	t.Logf("%d gated pods are there after %v", count, time.Since(began).Round(time.Millisecond))

	start(t, fmt.Sprintf("--claim-qps=%d", rate), fmt.Sprintf("--claim-burst=%d", 2*rate), "--metrics="+at(metricsPort), "--metrics-auth=false")
	patience := kubetest.Deadline + time.Duration(4*count/rate)*time.Second
	noneWaits(t, ns, patience)
	checkOrder(t, ns, made.names())
	checkRate(t, made, count, rate)
	checkRequests(t, count)
	reattach(t, owner, min(count, 1000), patience)
	if t.Failed() {
		return
	}
	peers(t, min(count, 300), patience)
	checkMonitoring(t)
}

// checkMonitoring has Prometheus scrape the manager: each panel of its dashboard has a number, each metric of its alerts exists, and docs name
// all of its metrics, and no others.
func checkMonitoring(t *testing.T) {
	t.Helper()
	const repository = "../.."
	server := promtest.Start(t, repository, promtest.Pod{
		URL: "http://" + at(metricsPort), Namespace: "datacache-scratch-volumes", Name: "manager-0", Port: "metrics",
		Labels: map[string]string{"app.kubernetes.io/name": "datacache-scratch-volumes"},
	})
	ns := cluster.Namespace(t) // its pods wait after the first scrape: what happened before is no increase
	owner := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "job"}}
	cluster.Create(t, owner)
	createPods(t, 3, func(i int) *corev1.Pod { return gatedPod(t, owner, i) })
	exprs := []string{}
	for _, q := range promtest.Queries(t, repository, "scratch-volumes", nil) {
		if !strings.Contains(q.Expr, "_failed_total") { // none has failed
			exprs = append(exprs, q.Expr)
		}
	}
	for _, rule := range promtest.Read(t, repository+"/manifests/components/monitoring/rules.yaml").Rules() {
		for _, name := range promtest.Metrics(rule.Expr) {
			if promtest.OfScratchVolumes(name) && !strings.Contains(name, "_failed_total") {
				exprs = append(exprs, name)
			}
		}
	}
	for _, expr := range append(exprs, `datacache_build_info{component="scratch-volumes"}`) {
		kubetest.Eventually(t, expr, func() error { return server.HasNumbers(expr) })
	}
	exported, err := server.Metrics()
	if err != nil {
		t.Fatal(err)
	}
	promtest.Documented(t, repository, append(exported, "datacache_claims_failed_total"), promtest.OfScratchVolumes)
}

// createPods creates pods, eight at a time.
func createPods(t *testing.T, count int, pod func(i int) *corev1.Pod) {
	t.Helper()
	creators, ctx := errgroup.WithContext(t.Context())
	creators.SetLimit(8)
	for i := range count {
		creators.Go(func() error { return cluster.Client.Create(ctx, pod(i)) })
	}
	if err := creators.Wait(); err != nil {
		t.Fatal(err)
	}
}

// gatedPod returns a pod as admission leaves it, for a scheduler that does not exist.
func gatedPod(t *testing.T, owner *corev1.ConfigMap, i int) *corev1.Pod {
	t.Helper()
	pod := ephemeralPod(owner.Namespace, fmt.Sprintf("rank-%d", i), map[string]string{claim.Mark: claim.PerReplica})
	pod.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, corev1.SchemeGroupVersion.WithKind("ConfigMap"))}
	if errs := claim.Mutate(pod); len(errs) > 0 {
		t.Error(errs)
	}
	return pod
}

func ephemeralPod(namespace, name string, annotations map[string]string) *corev1.Pod {
	template := &corev1.PersistentVolumeClaimTemplate{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}, Spec: claimSpec()}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{
			SchedulerName:                 "none",
			TerminationGracePeriodSeconds: new(int64(0)),
			Containers:                    []corev1.Container{{Name: "node", Image: "example.com/node"}},
			Volumes:                       []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: template}}}},
		},
	}
}

func claimSpec() corev1.PersistentVolumeClaimSpec {
	return corev1.PersistentVolumeClaimSpec{
		StorageClassName: new(scaleClass), AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod},
		Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}},
	}
}

// arrivals records the claims of a namespace in the order in which etcd has them, and when the watch reported them.
type arrivals struct {
	mu  sync.Mutex
	all []arrival
}

type arrival struct {
	name string
	at   time.Time
}

func watchArrivals(t *testing.T, namespace string) *arrivals {
	t.Helper()
	live, err := client.NewWithWatch(cluster.Config, client.Options{Scheme: cluster.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	events, err := live.Watch(t.Context(), &corev1.PersistentVolumeClaimList{}, client.InNamespace(namespace))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(events.Stop)
	a := &arrivals{}
	go func() {
		for event := range events.ResultChan() {
			if made, ok := event.Object.(*corev1.PersistentVolumeClaim); ok && event.Type == watch.Added {
				a.mu.Lock()
				a.all = append(a.all, arrival{made.Name, time.Now()})
				a.mu.Unlock()
			}
		}
	}()
	return a
}

func (a *arrivals) snapshot() []arrival {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.all)
}

func (a *arrivals) names() []string {
	var names []string
	for _, each := range a.snapshot() {
		names = append(names, each.name)
	}
	return names
}

// await waits for a number of claims, and returns the time from the first to the last, and the maximum within any second.
func (a *arrivals) await(t *testing.T, count int, patience time.Duration) (took time.Duration, most int) {
	t.Helper()
	kubetest.EventuallyLong(t, patience, fmt.Sprintf("%d claims", count), func() error {
		if n := len(a.snapshot()); n < count {
			return fmt.Errorf("there are %d", n)
		}
		return nil
	})
	all, first := a.snapshot(), 0
	for i := range all {
		for all[i].at.Sub(all[first].at) > time.Second {
			first++
		}
		most = max(most, i-first+1)
	}
	return all[len(all)-1].at.Sub(all[0].at), most
}

// noneWaits waits until no pod of a namespace waits for claims.
func noneWaits(t *testing.T, namespace string, patience time.Duration) {
	t.Helper()
	kubetest.EventuallyLong(t, patience, "all gates to be opened", func() error {
		pods := &metav1.PartialObjectMetadataList{}
		pods.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
		if err := cluster.Client.List(t.Context(), pods, client.InNamespace(namespace), client.MatchingLabels{claim.LabelState: claim.StateWaiting}); err != nil {
			return err
		}
		if len(pods.Items) > 0 {
			return fmt.Errorf("%d pods wait", len(pods.Items))
		}
		return nil
	})
}

// checkOrder checks that claims are created in the order of their pods' creation, and by number within a second.
func checkOrder(t *testing.T, namespace string, got []string) {
	t.Helper()
	var pods corev1.PodList
	if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(namespace)); err != nil {
		t.Fatal(err)
	}
	slices.SortFunc(pods.Items, func(a, b corev1.Pod) int {
		return cmp.Or(a.CreationTimestamp.Compare(b.CreationTimestamp.Time), cmp.Compare(len(a.Name), len(b.Name)), cmp.Compare(a.Name, b.Name))
	})
	var want []string
	for _, pod := range pods.Items {
		want = append(want, claim.Name("scratch", pod.Name))
	}
	if diff := gocmp.Diff(want, got); diff != "" {
		t.Errorf("the claims (-pods' order +etcd's):\n%s", diff)
	}
}

// checkRate checks the time from the first to the last claim against the rate; under 'make scale' it also checks an upper bound.
func checkRate(t *testing.T, made *arrivals, count, rate int) {
	t.Helper()
	took, most := made.await(t, count, kubetest.Deadline)
	want := time.Duration(count-1) * time.Second / time.Duration(rate)
	t.Logf("ours: %d claims in %.2f s (by arithmetic %.2f), %.1f a second, %d at most in one second", count, took.Seconds(), want.Seconds(), float64(count)/took.Seconds(), most)
	// Delays of the watch can make the measured time shorter or longer.
	if took < want*99/100-100*time.Millisecond {
		t.Errorf("claims were made faster than %d a second", rate)
	}
	if os.Getenv("CLAIMS") != "" && took > want*101/100 {
		t.Errorf("claims were made slower than %d a second, by more than 1 %%: set CLAIM_QPS to what this machine holds", rate)
	}
}

// checkRequests checks that a claim costs two requests: its creation and the patch of its pod.
func checkRequests(t *testing.T, count int) {
	t.Helper()
	all, total := scrape(t), 0.0
	for _, series := range slices.Sorted(maps.Keys(all)) {
		m := requestSeries.FindStringSubmatch(series)
		if m == nil {
			continue
		}
		code, method := m[1], m[2]
		t.Logf("%8.0f requests: %s %s", all[series], method, code)
		if method != http.MethodPut { // of leases
			total += all[series]
		}
	}
	t.Logf("%.3f requests a claim; the manager's memory is %.0f MiB", total/float64(count), all["process_resident_memory_bytes"]/(1<<20))
	const besides = 60 // for lists and watches, reviews, events, owners
	if most := float64(2*count + besides); total > most {
		t.Errorf("%.0f requests for %d claims, want at most %.0f", total, count, most)
	}
}

// reattach checks that pods whose claims exist already take no token.
func reattach(t *testing.T, owner *corev1.ConfigMap, count int, patience time.Duration) {
	t.Helper()
	before := scrape(t)["datacache_claims_created_total"]
	creators, ctx := errgroup.WithContext(t.Context())
	creators.SetLimit(8)
	for i := range count {
		creators.Go(func() error { return cluster.Client.Delete(ctx, gatedPod(t, owner, i)) })
	}
	if err := creators.Wait(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	createPods(t, count, func(i int) *corev1.Pod { return gatedPod(t, owner, i) })
	created := time.Since(began)
	noneWaits(t, owner.Namespace, patience)
	t.Logf("ours: %d pods that came back within %.1f s were all open after %.1f s", count, created.Seconds(), time.Since(began).Seconds())
	if after := scrape(t)["datacache_claims_created_total"]; after != before {
		t.Errorf("%.0f claims were made for pods that have theirs", after-before)
	}
}

// peers prints how fast a StatefulSet and ephemeral volumes get their claims.
func peers(t *testing.T, count int, patience time.Duration) {
	t.Helper()
	ns := cluster.Namespace(t)
	made := watchArrivals(t, ns)
	labels := map[string]string{"app": "peer"}
	pod := ephemeralPod(ns, "", nil)
	pod.Labels, pod.Spec.Volumes, pod.Spec.TerminationGracePeriodSeconds = labels, nil, nil
	cluster.Create(t, &appsv1.StatefulSet{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "peer"},
		Spec: appsv1.StatefulSetSpec{
			Replicas: new(int32(count)), PodManagementPolicy: appsv1.ParallelPodManagement, Selector: &metav1.LabelSelector{MatchLabels: labels},
			Template:             corev1.PodTemplateSpec{ObjectMeta: pod.ObjectMeta, Spec: pod.Spec},
			VolumeClaimTemplates: []corev1.PersistentVolumeClaim{{ObjectMeta: metav1.ObjectMeta{Name: "scratch"}, Spec: claimSpec()}},
		},
	})
	took, most := made.await(t, count, patience)
	t.Logf("StatefulSet, parallel: %d claims in %.2f s, %.1f a second, %d at most in one second", count, took.Seconds(), float64(count)/took.Seconds(), most)

	ns = cluster.Namespace(t)
	made = watchArrivals(t, ns)
	createPods(t, count, func(i int) *corev1.Pod { return ephemeralPod(ns, fmt.Sprintf("rank-%d", i), nil) })
	took, most = made.await(t, count, patience)
	t.Logf("ephemeral volumes: %d claims in %.2f s, %.1f a second, %d at most in one second", count, took.Seconds(), float64(count)/took.Seconds(), most)
}

var requestSeries = regexp.MustCompile(`^rest_client_requests_total{code="([^"]*)",host="[^"]*",method="([A-Z]*)"}$`)

// scrape returns the manager's metrics, by name and labels.
func scrape(t *testing.T) map[string]float64 {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at(metricsPort)+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	series := map[string]float64{}
	lines := bufio.NewScanner(response.Body)
	for lines.Scan() {
		at := strings.LastIndexByte(lines.Text(), ' ')
		if at < 0 || strings.HasPrefix(lines.Text(), "#") {
			continue
		}
		if series[lines.Text()[:at]], err = strconv.ParseFloat(lines.Text()[at+1:], 64); err != nil {
			t.Fatal(err)
		}
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return series
}
