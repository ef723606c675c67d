// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scratch

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/record"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/kubeflow/datacache/internal/claim"
)

const namespace = "team-a"

// plane is an in-memory API server for use in a synctest bubble, so that the test controls time. It also stands in for informers,
// which never lag here.
type plane struct {
	client.Client
	t      *testing.T
	began  time.Time
	refuse func(claim string) error // set before calling work
	events *record.FakeRecorder
	set    *appsv1.StatefulSet

	mu    sync.Mutex
	calls []string        // names of claims in the order of create calls
	at    []time.Duration // when they were
}

// created returns the names of claims in the order of create calls, and the times of the calls.
func (p *plane) created() (names []string, at []time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.calls), slices.Clone(p.at)
}

// record is called for each create call.
func (p *plane) record(name string) error {
	p.mu.Lock()
	p.calls, p.at = append(p.calls, name), append(p.at, time.Since(p.began))
	p.mu.Unlock()
	if p.refuse == nil {
		return nil
	}
	return p.refuse(name)
}

// pass advances time and waits until the worker has done everything that was due by then.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // the clock of synctest
	synctest.Wait()
}

func newPlane(t *testing.T) *plane {
	p := &plane{t: t, began: time.Now(), events: record.NewFakeRecorder(10_000)}
	p.Client = fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, object client.Object, options ...client.CreateOption) error {
			if _, ok := object.(*corev1.PersistentVolumeClaim); ok {
				if err := p.record(object.GetName()); err != nil {
					return err
				}
			}
			return c.Create(ctx, object, options...)
		},
	}).Build()
	p.set = p.statefulSet("set")
	return p
}

func (p *plane) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *plane) statefulSet(name string) *appsv1.StatefulSet {
	p.t.Helper()
	set := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID("uid-" + name)}}
	p.must(p.Create(p.t.Context(), set))
	return set
}

// pod creates a pod of the StatefulSet, after admission by the webhook.
func (p *plane) pod(name string, volumes ...string) *corev1.Pod {
	p.t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: namespace, Name: name, UID: types.UID(fmt.Sprintf("uid-%s-%d", name, time.Now().UnixNano())), CreationTimestamp: metav1.Now(),
		OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(p.set, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))},
	}}
	for _, name := range volumes {
		template := &corev1.PersistentVolumeClaimTemplate{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{claim.Mark: claim.PerReplica}}}
		pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{VolumeClaimTemplate: template}}})
	}
	if err := (mutator{}).Default(p.t.Context(), pod); err != nil {
		p.t.Fatal(err)
	}
	p.must(p.Create(p.t.Context(), pod))
	return pod
}

// work runs a worker until the end of the test or until stop is called.
func (p *plane) work(qps float64, burst int) (w *worker, stop func()) {
	p.t.Helper()
	w, err := newWorker(p.Client, p.Client, p.Client, newEvents(p.events), Options{QPS: qps, Burst: burst, Registry: prometheus.NewRegistry()})
	p.must(err)
	var pods corev1.PodList
	p.must(p.List(p.t.Context(), &pods))
	for _, pod := range pods.Items {
		w.notice(client.ObjectKeyFromObject(&pod))
	}
	ctx, cancel := context.WithCancel(p.t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); w.run(ctx) }()
	return w, func() { cancel(); <-ended }
}

func (p *plane) gated(pod *corev1.Pod) bool {
	p.t.Helper()
	p.must(p.Get(p.t.Context(), client.ObjectKeyFromObject(pod), pod))
	return claim.Gated(pod)
}

// said returns the events so far, each as "Type Reason message".
func (p *plane) said() []string {
	var all []string
	for {
		select {
		case e := <-p.events.Events:
			all = append(all, e)
		default:
			return all
		}
	}
}

func count(events []string, reason string) int {
	n := 0
	for _, e := range events {
		if strings.Contains(e, " "+reason+" ") {
			n++
		}
	}
	return n
}

// TestRate checks that 40 claims at 5 per second take 8 s, since the bucket starts empty, in the order of their pods.
func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t)
		var want []string
		for i := range 40 {
			p.pod(fmt.Sprintf("set-%d", i), "scratch")
			want = append(want, fmt.Sprintf("scratch-set-%d", i))
		}
		_, stop := p.work(5, 10)
		defer stop()
		pass(time.Minute)
		calls, at := p.created()
		if diff := cmp.Diff(want, calls); diff != "" {
			t.Errorf("claims in the order of creation:\n%s", diff)
		}
		if last := at[39]; last < 8*time.Second || last > 8*time.Second+time.Millisecond {
			t.Errorf("the last claim came after %v, want 8 s", last)
		}
		events := p.said()
		if count(events, EventWaiting) != 1 || count(events, EventReady) != 1 || len(events) != 2 {
			t.Errorf("events %q, want one ClaimsWaiting and one ClaimsReady of the job", events)
		}
		if !strings.Contains(events[0], "40 pods wait") || !strings.Contains(events[0], "5 claims a second this takes about 8s") {
			t.Errorf("event %q", events[0])
		}
	})
}

// TestBurst checks that after a pause as many claims are created at once as the bucket holds, and the rest at the rate.
func TestBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t)
		w, stop := p.work(5, 10)
		defer stop()
		time.Sleep(time.Minute) //nolint:forbidigo // the clock of synctest
		for i := range 15 {
			w.notice(client.ObjectKeyFromObject(p.pod(fmt.Sprintf("set-%d", i), "scratch")))
		}
		pass(time.Millisecond)
		if calls, _ := p.created(); len(calls) != 10 {
			t.Errorf("%d claims at once, want the burst of 10", len(calls))
		}
		pass(time.Second + time.Millisecond)
		if calls, _ := p.created(); len(calls) != 15 {
			t.Errorf("%d claims after a second, want 15", len(calls))
		}
	})
}

// TestTwoVolumes checks that a pod's gate is removed when both of its claims exist.
func TestTwoVolumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t)
		pod := p.pod("set-0", "data", "logs")
		_, stop := p.work(1, 1)
		defer stop()
		pass(1500 * time.Millisecond)
		if calls, _ := p.created(); !p.gated(pod) || !slices.Equal(calls, []string{"data-set-0"}) {
			t.Errorf("after one token: gated %v, claims %q", p.gated(pod), calls)
		}
		pass(time.Second)
		if calls, _ := p.created(); p.gated(pod) || !slices.Equal(calls, []string{"data-set-0", "logs-set-0"}) {
			t.Errorf("after two tokens: gated %v, claims %q", p.gated(pod), calls)
		}
		var made corev1.PersistentVolumeClaim
		p.must(p.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "logs-set-0"}, &made))
		want := []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "StatefulSet", Name: "set", UID: "uid-set", Controller: new(true)}}
		if diff := cmp.Diff(want, made.OwnerReferences); diff != "" {
			t.Errorf("owners:\n%s", diff)
		}
	})
}

// TestReattach checks that pods whose claims exist get their gates removed without a token, ahead of a pod that waits for one.
func TestReattach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t)
		var pods []*corev1.Pod
		for i := range 5 {
			pods = append(pods, p.pod(fmt.Sprintf("set-%d", i), "scratch"))
		}
		_, stop := p.work(1, 1)
		pass(10 * time.Second)
		stop()
		p.pod("set-5", "scratch") // it is first in the queue; there is one token per hour
		w, stop := p.work(1./3600, 1)
		defer stop()
		for i, old := range pods {
			p.must(p.Delete(t.Context(), old))
			pods[i] = p.pod(old.Name, "scratch")
			w.notice(client.ObjectKeyFromObject(pods[i]))
		}
		pass(time.Millisecond)
		for _, pod := range pods {
			if p.gated(pod) {
				t.Errorf("pod %s waits, its claim is there", pod.Name)
			}
		}
		if calls, _ := p.created(); len(calls) != 5 {
			t.Errorf("create calls %q, want the five of the first pods", calls)
		}
	})
}

// TestRefusedByQuota checks that a rejected claim moves to the end of the queue with a back-off that doubles, causes events on pod
// and owner, and is created in the end.
func TestRefusedByQuota(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t)
		first, second := p.pod("set-0", "scratch"), p.pod("set-1", "scratch")
		quota := apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumeclaims"}, "scratch-set-0", errors.New("exceeded quota: disks"))
		p.refuse = func(name string) error {
			if name == "scratch-set-0" && time.Since(p.began) < 10*time.Second {
				return quota
			}
			return nil
		}
		_, stop := p.work(10, 10)
		defer stop()
		pass(time.Second)
		if !p.gated(first) || p.gated(second) {
			t.Errorf("gated: refused %v, the one after it %v; want true, false", p.gated(first), p.gated(second))
		}
		events := p.said()
		if count(events, EventRefused) != 2 || !strings.Contains(events[0], "exceeded quota: disks") {
			t.Errorf("events %q, want ClaimRefused of pod and owner with the API server's words", events)
		}
		pass(time.Minute)
		if p.gated(first) {
			t.Error("the pod still waits")
		}
		// At 0.1, 1.1, 3.1, 7.1 and 15.1 s, and the one of the other pod.
		if calls, at := p.created(); len(calls) != 6 || at[5].Round(100*time.Millisecond) != 15100*time.Millisecond {
			t.Errorf("create calls %q at %v", calls, at)
		}
	})
}

// TestForeignClaim checks that a claim of somebody else is never adopted, and that the pod gets its own when that is gone.
func TestForeignClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t)
		foreign := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "scratch-set-0"}}
		p.must(p.Create(t.Context(), foreign))
		pod := p.pod("set-0", "scratch")
		_, stop := p.work(10, 10)
		defer stop()
		pass(5 * time.Minute)
		if events := p.said(); !p.gated(pod) || count(events, EventTaken) == 0 || count(events, EventReady) > 0 {
			t.Errorf("gated %v, events %q", p.gated(pod), events)
		}
		before := foreign.ResourceVersion
		p.must(p.Get(t.Context(), client.ObjectKeyFromObject(foreign), foreign))
		if foreign.ResourceVersion != before {
			t.Errorf("the foreign claim was changed: %+v", foreign)
		}
		p.must(p.Delete(t.Context(), foreign))
		pass(10 * time.Minute)
		if p.gated(pod) {
			t.Error("the pod still waits after the foreign claim is gone")
		}
	})
}

// TestAnotherLeader checks that a worker that takes over creates the remaining claims in the same order, none twice, and without a
// burst.
func TestAnotherLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t)
		var want []string
		for i := range 20 {
			p.pod(fmt.Sprintf("set-%d", i), "scratch")
			want = append(want, fmt.Sprintf("scratch-set-%d", i))
		}
		_, stop := p.work(5, 10)
		pass(2100 * time.Millisecond)
		stop()
		first, _ := p.created()
		made := len(first)
		_, stop = p.work(5, 10)
		defer stop()
		pass(199 * time.Millisecond)
		if calls, _ := p.created(); len(calls) != made {
			t.Errorf("%d claims at once by the new leader", len(calls)-made)
		}
		pass(time.Minute)
		calls, _ := p.created()
		if diff := cmp.Diff(want, calls); made != 10 || diff != "" {
			t.Errorf("%d claims by the first leader, want 10; all:\n%s", made, diff)
		}
	})
}

// TestOverMeansNoClaim checks that the pods of an owner that is gone or being deleted get no claim.
func TestOverMeansNoClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPlane(t)
		p.must(p.Delete(t.Context(), p.set))
		p.pod("set-0", "scratch")
		w, stop := p.work(10, 10)
		pass(time.Minute)
		stop()
		if calls, _ := p.created(); len(calls) != 0 || w.queue.head() != nil {
			t.Errorf("create calls %q, head %v", calls, w.queue.head())
		}
	})
}

// TestStranded checks that a pod whose volume has no ready node keeps its gate, with an event, until there is a node or a new claim.
func TestStranded(t *testing.T) {
	for _, by := range []string{"node", "claim"} {
		t.Run(by, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { testStranded(t, by) })
		})
	}
}

func testStranded(t *testing.T, by string) {
	p := newPlane(t)
	pod := p.pod("set-0", "scratch")
	_, stop := p.work(10, 10)
	pass(time.Second)
	stop()
	bound := &corev1.PersistentVolumeClaim{}
	p.must(p.Get(t.Context(), client.ObjectKey{Namespace: namespace, Name: "scratch-set-0"}, bound))
	bound.Spec.VolumeName = "pv-0"
	p.must(p.Update(t.Context(), bound))
	p.must(p.Create(t.Context(), &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pv-0"},
		Spec: corev1.PersistentVolumeSpec{NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
			{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{"n1"}}}},
		}}}},
	}))
	node := func(name string, ready corev1.ConditionStatus) *corev1.Node {
		return &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
			Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: ready}}},
		}
	}
	lost := node("n1", corev1.ConditionUnknown)
	p.must(p.Create(t.Context(), lost))
	p.must(p.Create(t.Context(), node("n2", corev1.ConditionTrue)))
	p.must(p.Delete(t.Context(), pod))
	p.said()

	pod = p.pod("set-0", "scratch")
	w, stop := p.work(10, 10)
	defer stop()
	pass(10 * time.Minute)
	events := p.said()
	if !p.gated(pod) || count(events, EventStranded) < 2 || !strings.Contains(events[0], "claim scratch-set-0 is bound to the volume pv-0") || !strings.Contains(events[0], "none is ready (n1)") {
		t.Fatalf("gated %v, events %q", p.gated(pod), events)
	}
	if by == "node" {
		lost.Status.Conditions[0].Status = corev1.ConditionTrue
		p.must(p.Status().Update(t.Context(), lost))
		pass(strandedBackOff)
	} else {
		p.must(p.Delete(t.Context(), bound))
		w.noticeGone(namespace, "set-0")
		pass(time.Millisecond)
	}
	if calls, _ := p.created(); p.gated(pod) || len(calls) != map[string]int{"node": 1, "claim": 2}[by] {
		t.Errorf("gated %v, create calls %q", p.gated(pod), calls)
	}
}
