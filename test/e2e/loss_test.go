// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

// TestDataNodeDies kills a data node during training. The same rows must be loaded again, and training must continue and get each row
// exactly once.
func TestDataNodeDies(t *testing.T) {
	t.Parallel()
	tests := map[string]func(t *testing.T, pod *corev1.Pod){
		"its container is killed": killContainer,
		"its pod is deleted": func(t *testing.T, pod *corev1.Pod) {
			t.Helper()
			if err := cluster.Client.Delete(t.Context(), pod, client.GracePeriodSeconds(0)); err != nil {
				t.Fatal(err)
			}
		},
	}
	for name, kill := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns := namespace(t)
			r := train(t, ns, slowJob(t, "slow"))
			r.passes(t, 2, 10)
			victim := appears(t, &corev1.Pod{}, ns, "slow-cache-0-1")
			began := time.Now()
			kill(t, victim)
			isBack(t, ns, "slow", began)
			r.ends(t, trainer.TrainJobComplete)
			readOnce(t, r, r.look(t), 2, wide.Rows)
		})
	}
}

// TestNodeIsLost powers off a whole node during training, with one of a cache's two data nodes and the disk of another Job's replica
// on it, and turns it on again. It is not parallel, since other tests have pods there too.
func TestNodeIsLost(t *testing.T) {
	ns := namespace(t)
	onCluster(t, "status")
	scratch := newStranded(t, namespace(t))
	dc := sharedCache(ns, wide.write(t), ns)
	dc.Spec.Retention.IdleTTL = nil // it must be kept while it has no user yet
	dc.Spec.Arrow.Head.Template = &v1alpha1.PodTemplate{Spec: &corev1.PodSpec{NodeSelector: map[string]string{corev1.LabelHostname: "n1"}}}
	checkNodes := metav1.LabelSelector{MatchLabels: map[string]string{wellknown.LabelCache: dc.Name, wellknown.LabelRole: wellknown.RoleNode}}
	dc.Spec.Arrow.DataNode.Template = &v1alpha1.PodTemplate{Spec: &corev1.PodSpec{Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
		RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: corev1.LabelHostname, LabelSelector: &checkNodes}},
	}}}}
	cluster.Create(t, dc)
	cluster.DataCache(t, ns, dc.Name, v1alpha1.StateReady)
	cordon(t, "n2") // keeps training off n2
	j := referring("through", ns, dc.Name)
	j.Nodes, j.Args = 2, slowArgs()
	r := train(t, ns, j)
	r.passes(t, 2, 10)
	schedule(t, "n2", true) // or the Job's next pod could not come back

	began := time.Now()
	powerOn := powerOff(t, "2")
	cluster.DataCache(t, ns, dc.Name, v1alpha1.StateDegraded)
	scratch.waits(t)
	powerOn()
	scratch.completes(t)
	isBack(t, ns, dc.Name, began)
	for rank := range 2 {
		lines, err := r.now(t, rank)
		if err != nil {
			t.Fatal(err)
		}
		if slices.ContainsFunc(lines, func(l outputLine) bool { return l.Rows > 0 }) {
			t.Errorf("rank %d was through with its epoch while half the rows were lost", rank)
		}
	}
	cluster.DataCache(t, ns, dc.Name, v1alpha1.StateReady)
	r.ends(t, trainer.TrainJobComplete)
	readOnce(t, r, r.look(t), 2, wide.Rows)
}

// wide is a table of which the buffers of a slow job's rank hold only a small part.
var wide = table{Name: "reviews", Rows: 20_000, Files: 4, Width: 4_000}

// slowJob reads the wide table with our loader on two ranks for most of a minute, which leaves time to disturb its cache.
func slowJob(t *testing.T, name string) job {
	t.Helper()
	j := cacheJob(name, wide.write(t), 2, "loader")
	j.Args = slowArgs()
	return j
}

func slowArgs() map[string]any { return map[string]any{"batch": 100, "pause": 0.2, "ahead": 2 << 20} }

// killContainer sends SIGKILL to the server itself, bypassing the kubelet, as the kernel does when memory runs out.
func killContainer(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	task(t, pod, "kill", "--signal", "SIGKILL")
}

// task has the node's containerd run a command on the task of the pod's only container.
func task(t *testing.T, pod *corev1.Pod, verb ...string) {
	t.Helper()
	id := strings.TrimPrefix(pod.Status.ContainerStatuses[0].ContainerID, "containerd://")
	ctr := []string{"node", strings.TrimPrefix(pod.Spec.NodeName, "n"), "ctr", "--namespace", "k8s.io", "tasks"}
	onCluster(t, append(append(ctr, verb...), id)...)
}

// headStatus is the part of a head's /status (cacheserver/head) that tests use.
type headStatus struct {
	State, Reason string
	Rows, Bytes   int64
	Nodes         []struct {
		Index       int
		State       string
		Rows, Bytes int64
		Restarts    int
	}
}

// isBack waits until a data node of the cache has died and all rows are in memory again, and logs the time since began and what was
// read again.
func isBack(t *testing.T, namespace, cache string, began time.Time) {
	t.Helper()
	var s headStatus
	await(t, "cache "+cache+" to be whole again", func() error {
		head := wellknown.CacheName(cache) + "-0"
		text, err := podPage(t, namespace, head, "status")
		if err != nil {
			return err
		}
		s = headStatus{}
		if err := json.Unmarshal(text, &s); err != nil {
			return fmt.Errorf("/status of %s is %q: %w", head, text, err)
		}
		for _, node := range s.Nodes {
			if node.Restarts > 0 && s.State == string(v1alpha1.StateReady) {
				return nil
			}
		}
		return fmt.Errorf("the head says %s", text)
	})
	for _, node := range s.Nodes {
		if node.Restarts > 0 {
			t.Logf("Ready again %.1f s after the blow: data node %d loaded %d of %d rows anew, %d of %d bytes",
				time.Since(began).Seconds(), node.Index, node.Rows, s.Rows, node.Bytes, s.Bytes)
		}
	}
}

// powerOff powers a node off and returns a function that turns it on again, which the end of the test does at the latest.
func powerOff(t *testing.T, node string) (on func()) {
	t.Helper()
	onCluster(t, "cut", node)
	on = sync.OnceFunc(func() { onCluster(t, "join", node) })
	t.Cleanup(on)
	return on
}

// cordon cordons a node until the end of the test.
func cordon(t *testing.T, name string) {
	t.Helper()
	editNode(t, name, `{"spec":{"unschedulable":true}}`, `{"spec":{"unschedulable":false}}`)
}

// editNode patches a node, and reverts it with the patch back at the end of the test.
func editNode(t *testing.T, name, patch, back string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	edit := func(patch string) error {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
		return cluster.Client.Patch(ctx, node, client.RawPatch("application/merge-patch+json", []byte(patch)))
	}
	if err := edit(patch); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := edit(back); err != nil {
			t.Error(err)
		}
	})
}
