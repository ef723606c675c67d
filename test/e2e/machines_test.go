// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// lostWithin is how long after a machine was lost its ranks must have their next batch: Kubernetes sees it after 40 to 55 s, and what was
// there is then replaced at once.
const lostWithin = 90 * time.Second

// TestMachinesAreLost loses one of three machines while TrainJobs of two ranks read caches that have parts on it, and brings it back:
// a cache with one of its two data nodes there, one with its head there, and one with a data node there that reads through the object
// cache. Nobody's rank may restart, each gets every row once in every epoch, and the next batch within lostWithin. E2E_LOSSES is how
// often, 1 by default; machines are lost in turn, and the power is cut and the network unplugged in turn. It is not parallel.
func TestMachinesAreLost(t *testing.T) {
	losses := 1
	if text := os.Getenv("E2E_LOSSES"); text != "" {
		var err error
		if losses, err = strconv.Atoi(text); err != nil {
			t.Fatalf("E2E_LOSSES=%q: want a number: %v", text, err)
		}
	}
	ns := namespace(t)
	addMachine(t)
	installObjects(t, overlay{team: ns})
	schedule(t, "n3", false)
	t.Cleanup(func() { schedule(t, "n2", true) })
	metadata := wide.write(t)
	caches := []*v1alpha1.DataCache{
		withDataNodeAway(ns, "nodes", metadata), withHeadAway(ns, "head", metadata), withDataNodeAway(ns, "objects", metadata),
	}
	caches[2].Spec.Arrow.ObjectCache = &v1alpha1.ObjectCache{Bucket: "tables"}
	for _, dc := range caches {
		cluster.Create(t, dc)
	}
	for _, dc := range caches {
		cluster.DataCache(t, ns, dc.Name, v1alpha1.StateReady)
	}
	random := seedtest.New(t)
	victim, spare := "n2", "n3"
	for i := range losses {
		ok := t.Run(fmt.Sprintf("%d", i), func(t *testing.T) {
			loseMachine(t, caches, loss{victim, spare, i%2 == 0, time.Duration(random.Int64N(int64(10 * time.Second)))})
		})
		if !ok {
			return
		}
		victim, spare = spare, victim
	}
	for _, dc := range caches { // before the machine that they are on is removed
		cluster.Delete(t, dc)
	}
}

// withDataNodeAway returns a cache of which one data node is on n1 and the other one not.
func withDataNodeAway(namespace, name, metadata string) *v1alpha1.DataCache {
	dc := lasting(namespace, name, metadata)
	others := metav1.LabelSelector{MatchLabels: map[string]string{wellknown.LabelCache: name, wellknown.LabelRole: wellknown.RoleNode}}
	dc.Spec.Arrow.Head.Template = only("n1")
	dc.Spec.Arrow.DataNode.Template = &v1alpha1.PodTemplate{Spec: &corev1.PodSpec{Affinity: &corev1.Affinity{
		PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{
			{TopologyKey: corev1.LabelHostname, LabelSelector: &others},
		}},
		NodeAffinity: &corev1.NodeAffinity{PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{
			{Weight: 100, Preference: hostname(corev1.NodeSelectorOpIn)},
		}},
	}}}
	return dc
}

// withHeadAway returns a cache whose data nodes are on n1 and whose head is not.
func withHeadAway(namespace, name, metadata string) *v1alpha1.DataCache {
	dc := lasting(namespace, name, metadata)
	dc.Spec.Arrow.DataNode.Template = only("n1")
	dc.Spec.Arrow.Head.Template = &v1alpha1.PodTemplate{Spec: &corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{hostname(corev1.NodeSelectorOpNotIn)}},
	}}}}
	return dc
}

// lasting returns a cache that is kept while it has no user.
func lasting(namespace, name, metadata string) *v1alpha1.DataCache {
	dc := sharedCache(namespace, metadata, namespace)
	dc.Name = name
	dc.Spec.Retention.IdleTTL = nil
	return dc
}

func only(machine string) *v1alpha1.PodTemplate {
	return &v1alpha1.PodTemplate{Spec: &corev1.PodSpec{NodeSelector: map[string]string{corev1.LabelHostname: machine}}}
}

func hostname(operator corev1.NodeSelectorOperator) corev1.NodeSelectorTerm {
	return corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: operator, Values: []string{"n1"}}}}
}

// addMachine adds n3 until the end of the test.
func addMachine(t *testing.T) {
	t.Helper()
	onCluster(t, "add", "cacheserver", "objectcache")
	t.Cleanup(func() { onCluster(t, "remove") })
}

// schedule cordons a machine, or uncordons it.
func schedule(t *testing.T, machine string, on bool) {
	t.Helper()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: machine}}
	patch := fmt.Sprintf(`{"spec":{"unschedulable":%t}}`, !on)
	if err := cluster.Client.Patch(context.WithoutCancel(t.Context()), node, client.RawPatch("application/merge-patch+json", []byte(patch))); err != nil {
		t.Error(err)
	}
}

// loss is how a machine is lost, and how long after the ranks' first steps.
type loss struct {
	victim, spare string
	unplugged     bool // its network is cut; otherwise its power
	after         time.Duration
}

// loseMachine trains from each cache, loses the machine, checks what Kubernetes and the ranks see of that, and brings it back.
func loseMachine(t *testing.T, caches []*v1alpha1.DataCache, l loss) {
	t.Helper()
	schedule(t, l.victim, false) // keeps the ranks off both
	schedule(t, l.spare, false)
	var runs []*run
	for _, dc := range caches {
		j := referring(fmt.Sprintf("%s-%s", dc.Name, l.victim+strconv.FormatInt(time.Now().Unix()%10_000, 10)), dc.Namespace, dc.Name)
		j.Nodes, j.Args = 2, slowArgs()
		j.Args["epochs"] = 2 // for the second epoch, ranks ask the head
		runs = append(runs, train(t, dc.Namespace, j))
	}
	for _, r := range runs {
		r.passes(t, 2, 2)
	}
	time.Sleep(l.after) //nolint:forbidigo // the machine is lost at a random moment of the load
	schedule(t, l.victim, true)
	schedule(t, l.spare, true)
	kept := appears(t, &corev1.Pod{}, caches[1].Namespace, "head-cache-0-1")

	began := time.Now()
	restore := lose(t, l)
	for _, dc := range caches {
		names(t, dc, l.victim, began)
	}
	for _, dc := range caches {
		cluster.DataCache(t, dc.Namespace, dc.Name, v1alpha1.StateReady)
	}
	t.Logf("%s lost (unplugged %t), after %s: all caches Ready again after %.1f s", l.victim, l.unplugged, l.after.Round(time.Millisecond), time.Since(began).Seconds())
	if now := appears(t, &corev1.Pod{}, kept.Namespace, kept.Name); now.UID != kept.UID || now.Status.ContainerStatuses[0].RestartCount > 0 {
		t.Errorf("data node %s did not outlive its head", kept.Name)
	}
	restore()
	for i, r := range runs {
		r.ends(t, trainer.TrainJobComplete)
		if next := trained(t, r, began); next > lostWithin {
			t.Errorf("cache %s: the next batch came after %.1f s, want at most %.0f", caches[i].Name, next.Seconds(), lostWithin.Seconds())
		}
		cluster.Delete(t, r.get(t))
	}
	for _, dc := range caches {
		cluster.DataCache(t, dc.Namespace, dc.Name, v1alpha1.StateReady)
	}
}

// lose loses the machine and returns a function that brings it back and waits until it is Ready. The end of the test calls it at the latest.
func lose(t *testing.T, l loss) (restore func()) {
	t.Helper()
	take, give, number := "cut", "join", strings.TrimPrefix(l.victim, "n")
	if l.unplugged {
		take, give = "unplug", "plug"
	}
	onCluster(t, take, number)
	restored := false
	restore = func() {
		if restored {
			return
		}
		restored = true
		onCluster(t, give, number)
		node, ctx := &corev1.Node{}, context.WithoutCancel(t.Context())
		await(t, l.victim+" to be Ready", func() error {
			if err := cluster.Client.Get(ctx, client.ObjectKey{Name: l.victim}, node); err != nil {
				return err
			}
			for _, c := range node.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
					return nil
				}
			}
			return fmt.Errorf("its conditions are %+v", node.Status.Conditions)
		})
	}
	t.Cleanup(restore)
	return restore
}

// names waits until the cache has said, since a time, which machine it lost, and since when. It looks for the event: the condition that
// says so may have passed.
func names(t *testing.T, dc *v1alpha1.DataCache, machine string, since time.Time) {
	t.Helper()
	want := "Kubernetes node " + machine + " has not answered since 20"
	await(t, "cache "+dc.Name+" to say: "+want, func() error {
		var events corev1.EventList
		if err := cluster.Client.List(t.Context(), &events, client.InNamespace(dc.Namespace)); err != nil {
			return err
		}
		for _, e := range events.Items {
			last := e.LastTimestamp.Time
			if last.IsZero() {
				last = e.EventTime.Time
			}
			if e.InvolvedObject.Name == dc.Name && e.Reason == "CacheDegraded" && strings.Contains(e.Message, want) && !last.Before(since.Truncate(time.Second)) {
				t.Logf("%s", e.Message)
				return nil
			}
		}
		return fmt.Errorf("none of %d events of namespace %s says so", len(events.Items), dc.Namespace)
	})
}

// trained checks that the TrainJob's ranks never restarted and got each row once in each of two epochs, and returns the longest time
// from the loss until a rank had a batch that came after it and after which it waited no more than usual.
func trained(t *testing.T, r *run, lost time.Time) (next time.Duration) {
	t.Helper()
	var pods corev1.PodList
	labels := client.MatchingLabels{"jobset.sigs.k8s.io/jobset-name": r.name, "jobset.sigs.k8s.io/replicatedjob-name": "node"}
	if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(r.namespace), labels); err != nil {
		t.Fatal(err)
	}
	restarts := 0
	for _, pod := range pods.Items {
		restarts += int(pod.Status.ContainerStatuses[0].RestartCount)
	}
	if len(pods.Items) != 2 || restarts > 0 {
		t.Errorf("TrainJob %s had %d pods for its two ranks, which restarted %d times", r.name, len(pods.Items), restarts)
	}
	epochs := make([][]int64, 2)
	logs := r.look(t).Logs
	for rank := range 2 {
		var times []float64
		for _, line := range parse(t, logs[fmt.Sprintf("node-%d", rank)]) {
			epochs[line.Epoch] = append(epochs[line.Epoch], line.IDs...)
			if line.At > 0 {
				times = append(times, line.At)
			}
		}
		after := nextBatch(times, lost)
		t.Logf("TrainJob %s, rank %d: next batch after %.1f s", r.name, rank, after.Seconds())
		next = max(next, after)
	}
	for _, ids := range epochs {
		eachOnce(t, ids, wide.Rows)
	}
	return next
}

// nextBatch returns the time from the loss until the step after the longest pause since then: of a rank that never waited, 0.
func nextBatch(times []float64, lost time.Time) time.Duration {
	since := float64(lost.UnixMilli()) / 1000
	longest, end := 2.0, since // seconds; shorter pauses are usual
	for i := 1; i < len(times); i++ {
		if pause := times[i] - times[i-1]; pause > longest && times[i] > since {
			longest, end = pause, times[i]
		}
	}
	return time.Duration((end - since) * float64(time.Second))
}
