// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	ice "github.com/apache/iceberg-go"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/cacheserver/head"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
	"github.com/kubeflow/datacache/test/kit/icetest"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

const (
	headOf = "reviews-cache-0"   // of byHand
	nodeOf = "reviews-cache-0-1" // its first data node
)

// onMachine creates byHand's cache with the pods of a role on a machine of its own, and waits for its three pods to run.
func onMachine(t *testing.T, role string) (*v1alpha1.DataCache, *kubetest.Machine) {
	t.Helper()
	ns := cluster.Namespace(t)
	m := cluster.Machine(t, strings.TrimPrefix(ns, "test-")+"-"+role)
	dc := byHand(ns)
	template := &v1alpha1.PodTemplate{Spec: m.On()}
	if role == "head" {
		dc.Spec.Arrow.Head.Template = template
	} else {
		dc.Spec.Arrow.DataNode.Template = template
	}
	cluster.Create(t, dc)
	kubetest.Eventually(t, "the cache's pods to run", func() error {
		for _, name := range []string{headOf, nodeOf, "reviews-cache-0-2"} {
			pod := &corev1.Pod{}
			if err := cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: name}, pod); err != nil {
				return err
			}
			if pod.Status.Phase != corev1.PodRunning {
				return fmt.Errorf("pod %s is %s", name, pod.Status.Phase)
			}
		}
		return nil
	})
	return dc, m
}

// evict deletes a pod as Kubernetes' node controller does with those on a machine that has been lost for as long as they tolerate it,
// unless it was replaced already.
func evict(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	err := cluster.Client.Delete(t.Context(), pod, client.Preconditions{UID: &pod.UID})
	if client.IgnoreNotFound(err) != nil && !apierrors.IsConflict(err) {
		t.Fatal(err)
	}
}

// replaced waits until another pod has the name of the pod.
func replaced(t *testing.T, pod *corev1.Pod) *corev1.Pod {
	t.Helper()
	now := &corev1.Pod{}
	kubetest.Eventually(t, "pod "+pod.Name+" to be replaced", func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(pod), now); err != nil {
			return err
		}
		if now.UID == pod.UID {
			return fmt.Errorf("it is the same pod, deleted at %v", now.DeletionTimestamp)
		}
		return nil
	})
	return now
}

// says waits until the cache's condition Ready has a reason and a message with the text.
func says(t *testing.T, dc *v1alpha1.DataCache, reason, text string) {
	t.Helper()
	kubetest.Eventually(t, "the condition to say "+text, func() error {
		now := &v1alpha1.DataCache{}
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(dc), now); err != nil {
			return err
		}
		c := meta.FindStatusCondition(now.Status.Conditions, v1alpha1.ConditionReady)
		if c == nil || c.Reason != reason || !strings.Contains(c.Message, text) {
			return fmt.Errorf("it is %+v", c)
		}
		return nil
	})
}

// waitingHead runs a head without data nodes as the head of byHand's cache.
func waitingHead(t *testing.T, namespace string) {
	t.Helper()
	lake := icetest.Local(t).Create("reviews", 2, ice.NewSchema(0, ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64}))
	lake.Append(icetest.Row{"id": 1})
	store := objstore.New(objstore.Config{})
	_, web := runServer(t, func(_ context.Context, flight, web net.Listener) (proctest.Server, error) {
		return head.New(head.Config{Nodes: 2, Config: role.Config{
			Flight: flight, HTTP: web, Budget: offheap.NewBudget(1 << 28), Store: store, Source: &iceberg.Source{Store: store, Location: iceberg.Location{Metadata: lake.Metadata()}},
			Grace: time.Second, Log: slog.New(slog.DiscardHandler), Metrics: ops.NewMetrics(),
		}})
	})
	leads(t, web, namespace, "reviews")
}

// TestMachineOfDataNodesIsLost checks that pods on a machine that doesn't answer are replaced as soon as they are evicted, and that the
// condition says which machine that is, since when, and what is done.
func TestMachineOfDataNodesIsLost(t *testing.T) {
	t.Parallel()
	dc, m := onMachine(t, "node")
	waitingHead(t, dc.Namespace)
	before := appears(t, &corev1.Pod{}, dc.Namespace, nodeOf)
	for _, taint := range []string{corev1.TaintNodeNotReady, corev1.TaintNodeUnreachable} {
		if s := toleration(before, taint); s != 30 {
			t.Errorf("it tolerates %s for %d s, want 30", taint, s)
		}
	}
	since := m.Lose(t).UTC().Format(time.RFC3339)
	says(t, dc, "NodeNotReady", "Kubernetes node "+m.Name+" has not answered since "+since+"; pod "+nodeOf+" is replaced 30 s later at the latest")
	evict(t, before)
	replaced(t, before)
}

// TestDataNodeThatIsHeardStays checks that a data node on a machine that the API server has lost is kept as long as its head hears it.
func TestDataNodeThatIsHeardStays(t *testing.T) {
	t.Parallel()
	dc, m := onMachine(t, "node")
	served(t, dc.Namespace, dc.Name)
	cluster.DataCache(t, dc.Namespace, dc.Name, v1alpha1.StateReady)
	before := appears(t, &corev1.Pod{}, dc.Namespace, nodeOf)
	m.Lose(t)
	evict(t, before)
	change(t, dc, func(dc *v1alpha1.DataCache) { dc.Spec.Retention.IdleTTL = &metav1.Duration{Duration: time.Hour} }) // has it reconciled
	cluster.Become(t, dc, dc.Namespace, dc.Name, "reconciled", func() error {
		if dc.Status.ObservedGeneration < dc.Generation {
			return fmt.Errorf("generation %d of %d", dc.Status.ObservedGeneration, dc.Generation)
		}
		return nil
	})
	if now := appears(t, &corev1.Pod{}, dc.Namespace, nodeOf); now.UID != before.UID {
		t.Error("a data node that serves its rows was replaced")
	}
	waitingHead(t, dc.Namespace)
	change(t, dc, func(dc *v1alpha1.DataCache) {
		dc.Annotations = map[string]string{"test": "reconciles it at once, not in 30 s"}
	})
	replaced(t, before)
}

// toleration returns for how many seconds a pod tolerates a taint that evicts; -1 if for ever or not at all.
func toleration(pod *corev1.Pod, taint string) int64 {
	for _, t := range pod.Spec.Tolerations {
		if t.Key == taint && t.Effect == corev1.TaintEffectNoExecute && t.TolerationSeconds != nil {
			return *t.TolerationSeconds
		}
	}
	return -1
}

// TestMachineIsRemoved checks that the pods on a machine whose Node is deleted are replaced at once.
func TestMachineIsRemoved(t *testing.T) {
	t.Parallel()
	dc, m := onMachine(t, "node")
	waitingHead(t, dc.Namespace)
	before := appears(t, &corev1.Pod{}, dc.Namespace, nodeOf)
	m.Remove(t)
	replaced(t, before)
}

// TestDataNodesOutliveTheirHead checks that the data nodes keep running when their head's pod is replaced, and that their StatefulSet
// then belongs to the new head, so that it goes with it.
func TestDataNodesOutliveTheirHead(t *testing.T) {
	t.Parallel()
	for name, loses := range map[string]bool{"its machine is lost": true, "it is drained": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dc, m := onMachine(t, "head")
			head, node := appears(t, &corev1.Pod{}, dc.Namespace, headOf), appears(t, &corev1.Pod{}, dc.Namespace, nodeOf)
			if loses {
				m.Lose(t)
			} else {
				ends := time.Now().Add(time.Second) // a server takes that long to end
				cluster.Kubelet.Play(dc.Namespace, func(*corev1.Pod) kubetest.Act { return kubetest.Act{Linger: time.Now().Before(ends)} })
			}
			evict(t, head)
			now := replaced(t, head)
			owns(t, now)
			same := appears(t, &corev1.Pod{}, dc.Namespace, nodeOf)
			if same.UID != node.UID || same.DeletionTimestamp != nil {
				t.Errorf("data node %s was deleted at %v, %v: its pod is another", node.UID, same.DeletionTimestamp, same.UID)
			}
			if err := cluster.Client.Delete(t.Context(), dc); err != nil {
				t.Fatal(err)
			}
			noCachePods(t, dc.Namespace)
		})
	}
}

// owns waits until the data nodes' StatefulSet belongs to the head.
func owns(t *testing.T, head *corev1.Pod) {
	t.Helper()
	kubetest.Eventually(t, "the new head to own the data nodes", func() error {
		set := &appsv1.StatefulSet{}
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(head), set); err != nil {
			return err
		}
		if owner := metav1.GetControllerOf(set); owner == nil || owner.UID != head.UID {
			return fmt.Errorf("its owner is %+v", owner)
		}
		return nil
	})
}

// TestDataNodesOfAnotherTemplateAreReplaced checks that data nodes that outlived their head do not outlive their template.
func TestDataNodesOfAnotherTemplateAreReplaced(t *testing.T) {
	t.Parallel()
	dc, m := onMachine(t, "head")
	head, node := appears(t, &corev1.Pod{}, dc.Namespace, headOf), appears(t, &corev1.Pod{}, dc.Namespace, nodeOf)
	m.Lose(t)
	change(t, dc, func(dc *v1alpha1.DataCache) {
		dc.Spec.Arrow.Head.Template = nil
		dc.Spec.Arrow.DataNode.Resources.Requests = memory("3Gi")
	})
	kubetest.Eventually(t, "the head to be deleted", func() error {
		now := &corev1.Pod{}
		err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(head), now)
		if err == nil && now.UID == head.UID && now.DeletionTimestamp == nil {
			err = fmt.Errorf("it is not")
		}
		return err
	})
	owns(t, replaced(t, head))
	fresh := replaced(t, node)
	if got := fresh.Spec.Containers[0].Resources.Requests.Memory().String(); got != "3Gi" {
		t.Errorf("the new data node has %s", got)
	}
	owns(t, appears(t, &corev1.Pod{}, dc.Namespace, headOf))
}
