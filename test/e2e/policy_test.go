// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/internal/wellknown"
)

// TestNetworkPolicies checks who may connect to a cache's pods, by evaluating the cluster's policies for the labels of real pods. Where
// the cluster's network enforces policies, as that of hack/cluster does, it also tries.
func TestNetworkPolicies(t *testing.T) {
	t.Parallel()
	own, allowed, stranger := namespace(t), namespace(t), namespace(t)
	dc := sharedCache(own, reviews.write(t), allowed)
	dc.Spec.Retention.IdleTTL = nil // it must outlive its users
	cluster.Create(t, dc)
	for _, ns := range []string{own, allowed} {
		j := referring("through", own, dc.Name)
		j.Args = slowArgs()
		train(t, ns, j).passes(t, 1, 1)
	}
	head := appears(t, &corev1.Pod{}, own, wellknown.CacheName(dc.Name)+"-0")
	flight, http := int32(wellknown.FlightPort), int32(wellknown.HTTPPort)
	training := client.MatchingLabels{"jobset.sigs.k8s.io/jobset-name": "through", "jobset.sigs.k8s.io/replicatedjob-name": wellknown.NodeName}

	for _, cache := range pods(t, own, client.MatchingLabels{wellknown.LabelCache: dc.Name}) {
		for _, from := range pods(t, own, client.HasLabels{wellknown.LabelCache}) {
			admits(t, &cache, &from, true, flight, http)
		}
		for _, ns := range []string{own, allowed} {
			for _, from := range pods(t, ns, training) {
				admits(t, &cache, &from, true, flight)
			}
		}
		for _, from := range pods(t, manager(t).Namespace, managerLabels) {
			admits(t, &cache, &from, true, http)
			admits(t, &cache, &from, false, flight)
		}
		for _, from := range pods(t, storeNamespace) {
			admits(t, &cache, &from, false, flight, http)
		}
		admits(t, &cache, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: stranger, Name: "a stranger's"}}, false, flight, http)
	}

	address := head.Status.PodIP
	if !connects(t, own, "neighbour", address, flight, deadline/2) || !connects(t, allowed, "guest", address, flight, deadline/2) {
		t.Error("a pod of the cache's own namespace or of an allowed one can't connect to its head")
	}
	if !obeysPolicies(t, stranger, address, flight) {
		if cluster.folder != "" {
			t.Fatal("kube-router lets out a pod whose policy allows nothing: cluster logs n1-kube-router")
		}
		notTried("TestNetworkPolicies: no policy was enforced, for this cluster's network lets out a pod whose policy allows nothing; only the rules were compared with pods' labels")
		return
	}
	const watching = "monitoring" // of the manager's --metrics-from=monitoring/pod=prometheus (hack/cluster)
	if err := cluster.Client.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: watching}}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	if cluster.folder != "" && !connects(t, watching, "prometheus", address, http, deadline/2) {
		t.Error("Prometheus can't connect to the head's metrics")
	}
	if connects(t, watching, "grafana", address, http, briefly) {
		t.Error("another pod of Prometheus' namespace connects to the head's metrics")
	}
	for i, port := range []int32{flight, http} {
		if connects(t, stranger, fmt.Sprintf("stranger-%d", i), address, port, briefly) {
			t.Errorf("a pod of a namespace that isn't allowed connects to port %d of the head", port)
		}
	}
}

// pods returns the pods of a namespace with the labels; there must be some.
func pods(t *testing.T, namespace string, options ...client.ListOption) []corev1.Pod {
	t.Helper()
	var list corev1.PodList
	if err := cluster.Client.List(t.Context(), &list, append(options, client.InNamespace(namespace))...); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) == 0 {
		t.Fatalf("namespace %s has no pods with %v", namespace, options)
	}
	return list.Items
}

// admits checks whether the NetworkPolicies allow traffic from one pod to the ports of another: according to the API, traffic is
// rejected if a policy of the target's namespace selects the target and no rule of such a policy allows the traffic.
func admits(t *testing.T, to, from *corev1.Pod, want bool, ports ...int32) {
	t.Helper()
	var policies networkingv1.NetworkPolicyList
	if err := cluster.Client.List(t.Context(), &policies, client.InNamespace(to.Namespace)); err != nil {
		t.Fatal(err)
	}
	for _, port := range ports {
		selected, allowed := false, false
		for _, policy := range policies.Items {
			if !slices.Contains(policy.Spec.PolicyTypes, networkingv1.PolicyTypeIngress) || !selects(t, &policy.Spec.PodSelector, to.Labels) {
				continue
			}
			selected = true
			for _, rule := range policy.Spec.Ingress {
				allowed = allowed || rulesPort(t, rule, port) && rulesPeer(t, policy.Namespace, rule, from)
			}
		}
		if got := !selected || allowed; got != want {
			t.Errorf("pod %s/%s may connect to port %d of %s: %t, want %t", from.Namespace, from.Name, port, to.Name, got, want)
		}
	}
}

// rulesPort reports whether the rule applies to the TCP port.
func rulesPort(t *testing.T, rule networkingv1.NetworkPolicyIngressRule, port int32) bool {
	t.Helper()
	return len(rule.Ports) == 0 || slices.ContainsFunc(rule.Ports, func(p networkingv1.NetworkPolicyPort) bool {
		if p.EndPort != nil || p.Port != nil && p.Port.IntValue() == 0 {
			t.Fatalf("a policy has the port %v: this test knows numbers alone", p)
		}
		return (p.Protocol == nil || *p.Protocol == corev1.ProtocolTCP) && (p.Port == nil || p.Port.IntValue() == int(port))
	})
}

// rulesPeer reports whether the rule of a policy in the namespace applies to the pod.
func rulesPeer(t *testing.T, namespace string, rule networkingv1.NetworkPolicyIngressRule, from *corev1.Pod) bool {
	t.Helper()
	return len(rule.From) == 0 || slices.ContainsFunc(rule.From, func(peer networkingv1.NetworkPolicyPeer) bool {
		if peer.IPBlock != nil {
			t.Fatalf("a policy has the block %v: this test knows pods and namespaces alone", peer.IPBlock)
		}
		if peer.PodSelector != nil && !selects(t, peer.PodSelector, from.Labels) {
			return false
		}
		if peer.NamespaceSelector == nil {
			return from.Namespace == namespace
		}
		home := &corev1.Namespace{}
		if err := cluster.Client.Get(t.Context(), client.ObjectKey{Name: from.Namespace}, home); err != nil {
			t.Fatal(err)
		}
		return selects(t, peer.NamespaceSelector, home.Labels)
	})
}

func selects(t *testing.T, selector *metav1.LabelSelector, carried map[string]string) bool {
	t.Helper()
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		t.Fatal(err)
	}
	return s.Matches(labels.Set(carried))
}

// obeysPolicies reports whether the network enforces a policy that allows a pod no egress.
func obeysPolicies(t *testing.T, namespace, address string, port int32) bool {
	t.Helper()
	cluster.Create(t, &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "locked-in"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"pod": "locked-in"}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
		},
	})
	return !connects(t, namespace, "locked-in", address, port, briefly)
}

// briefly is how long a pod tries to connect that should not be able to.
const briefly = 5 * time.Second

// tryToConnect tries again, as the network learns of a new pod's address only after the pod has started.
const tryToConnect = `
import socket, sys, time
host, port, end = sys.argv[1], int(sys.argv[2]), time.monotonic() + float(sys.argv[3])
while True:
    try:
        sys.exit(socket.create_connection((host, port), 5).close())
    except OSError as error:
        if time.monotonic() > end:
            sys.exit(str(error))
    time.sleep(0.2)
`

// connects reports whether a pod of the namespace can connect to the address within the time.
func connects(t *testing.T, namespace, name, address string, port int32, within time.Duration) bool {
	t.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{"pod": name}},
		Spec: corev1.PodSpec{
			RestartPolicy: corev1.RestartPolicyNever,
			Containers: []corev1.Container{{
				Name: "connect", Image: trainerImage, Command: []string{"python3", "-c", tryToConnect},
				Args: []string{address, strconv.Itoa(int(port)), strconv.FormatFloat(within.Seconds(), 'f', -1, 64)},
			}},
		},
	}
	cluster.Create(t, pod)
	ctx := context.WithoutCancel(t.Context())
	t.Cleanup(func() { _ = cluster.Client.Delete(ctx, pod) }) // where its namespace stays
	await(t, "pod "+name+" to have tried", func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		if phase := pod.Status.Phase; phase != corev1.PodSucceeded && phase != corev1.PodFailed {
			return fmt.Errorf("it is %s", phase)
		}
		return nil
	})
	return pod.Status.Phase == corev1.PodSucceeded
}
