// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Machine is a simulated node of one test, which the test may lose.
type Machine struct {
	Name    string
	cluster *Cluster
}

// machineTaint keeps the pods of other tests away from a Machine.
const machineTaint = "kubetest.datacache/machine"

// Machine creates a node until the end of the test. Only pods with On's PodSpec are bound to it.
func (c *Cluster) Machine(t testing.TB, name string) *Machine {
	t.Helper()
	ctx := context.WithoutCancel(t.Context()) // t.Context() is canceled before cleanup
	if err := c.createNode(ctx, name, "zone-"+name); err != nil {
		t.Fatal(err)
	}
	m := &Machine{name, c}
	m.taint(t, corev1.Taint{Key: machineTaint, Effect: corev1.TaintEffectNoSchedule})
	c.Kubelet.simulate(name, true)
	t.Cleanup(func() {
		c.Kubelet.simulate(name, false)
		if err := client.IgnoreNotFound(c.Client.Delete(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}})); err != nil {
			t.Error(err)
		}
	})
	return m
}

// On returns the part of a PodSpec that binds a pod to the machine.
func (m *Machine) On() *corev1.PodSpec {
	return &corev1.PodSpec{
		NodeSelector: map[string]string{corev1.LabelHostname: m.Name},
		Tolerations:  []corev1.Toleration{{Key: machineTaint, Operator: corev1.TolerationOpExists}},
	}
}

// Hold gives the machine room for pods that request this much cpu in all.
func (m *Machine) Hold(t testing.TB, cpu string) {
	t.Helper()
	Eventually(t, "make room", func() error {
		node := &corev1.Node{}
		if err := m.cluster.Client.Get(t.Context(), client.ObjectKey{Name: m.Name}, node); err != nil {
			return err
		}
		node.Status.Capacity[corev1.ResourceCPU] = resource.MustParse(cpu)
		node.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse(cpu)
		return m.cluster.Client.Status().Update(t.Context(), node)
	})
}

// Lose ends the machine's kubelet, and writes what Kubernetes' node controller writes then: the condition Ready is Unknown, the node is
// tainted, and its pods are not ready. It returns the time of that, as the node has it.
func (m *Machine) Lose(t testing.TB) time.Time {
	t.Helper()
	m.cluster.Kubelet.simulate(m.Name, false)
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.Name}}
	c := m.cluster.Client
	if err := c.Get(t.Context(), client.ObjectKeyFromObject(node), node); err != nil {
		t.Fatal(err)
	}
	since := metav1.Now().Rfc3339Copy()
	node.Status.Conditions = []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", Message: "Kubelet stopped posting node status.", LastTransitionTime: since,
	}}
	if err := c.Status().Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	m.taint(t, corev1.Taint{Key: machineTaint, Effect: corev1.TaintEffectNoSchedule},
		corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoSchedule}, corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute})
	return since.Time
}

// Remove deletes the machine's Node, as cloud providers do with machines that no longer exist.
func (m *Machine) Remove(t testing.TB) {
	t.Helper()
	m.cluster.Kubelet.simulate(m.Name, false)
	if err := m.cluster.Client.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: m.Name}}); err != nil {
		t.Fatal(err)
	}
}

func (m *Machine) taint(t testing.TB, taints ...corev1.Taint) {
	t.Helper()
	Eventually(t, "taint "+m.Name, func() error {
		node := &corev1.Node{}
		if err := m.cluster.Client.Get(t.Context(), client.ObjectKey{Name: m.Name}, node); err != nil {
			return err
		}
		node.Spec.Taints = taints
		return m.cluster.Client.Update(t.Context(), node)
	})
}
