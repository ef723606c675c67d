// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// TestStrands checks which pods on machines that are not ready are deleted without grace period, and what is said of them.
func TestStrands(t *testing.T) {
	t.Parallel()
	since := metav1.NewTime(noon.Add(-time.Minute))
	deleted := func(graceEnds time.Time) *corev1.Pod {
		return cachePod(RoleNode, "c-0-1", func(pod *corev1.Pod) { pod.DeletionTimestamp = new(metav1.NewTime(graceEnds)) })
	}
	for name, c := range map[string]struct {
		outage  outage
		pod     *corev1.Pod
		contact contact
		want    bool
		says    string
	}{
		"silent, not evicted yet": {
			outage{"n2", since, true}, cachePod(RoleNode, "c-0-1"), contactUnknown, false,
			"Kubernetes node n2 has not answered since 2026-05-01T11:59:00Z; pod c-0-1 is replaced 30 s later at the latest",
		},
		"silent, also to its head": {
			outage{"n2", since, true}, cachePod(RoleNode, "c-0-1"), contactLost, true,
			"Kubernetes node n2 has not answered since 2026-05-01T11:59:00Z; pod c-0-1 is replaced 30 s later at the latest",
		},
		"silent, but not to its head": {
			outage{"n2", since, true}, deleted(noon.Add(30 * time.Second)), contactHeld, false,
			"Kubernetes node n2 has not answered since 2026-05-01T11:59:00Z; pod c-0-1 is being replaced",
		},
		"silent, evicted": {
			outage{"n2", since, true}, deleted(noon.Add(30 * time.Second)), contactUnknown, true,
			"Kubernetes node n2 has not answered since 2026-05-01T11:59:00Z; pod c-0-1 is being replaced",
		},
		"its kubelet answers and ends it": {
			outage{"n2", since, false}, deleted(noon.Add(time.Second)), contactUnknown, false,
			"Kubernetes node n2 has not been ready since 2026-05-01T11:59:00Z; pod c-0-1 is being replaced",
		},
		"its kubelet answers and doesn't end it": {
			outage{"n2", since, false}, deleted(noon.Add(-11 * time.Second)), contactUnknown, true,
			"Kubernetes node n2 has not been ready since 2026-05-01T11:59:00Z; pod c-0-1 is being replaced",
		},
		"gone": {
			outage{machine: "n2", silent: true}, cachePod(RoleNode, "c-0-1"), contactUnknown, true,
			"Kubernetes node n2 no longer exists; pod c-0-1 is being replaced",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := c.outage.strands(c.pod, c.contact, noon.Time); got != c.want {
				t.Errorf("strands is %t, want %t", got, c.want)
			}
			if diff := cmp.Diff(&trouble{reasonMachine, c.says}, c.outage.trouble(c.pod), cmp.AllowUnexported(trouble{})); diff != "" {
				t.Errorf("trouble differs (-want +got):\n%s", diff)
			}
		})
	}
}

// TestTolerateOutages checks that a template's own toleration of a taint is kept.
func TestTolerateOutages(t *testing.T) {
	t.Parallel()
	own := corev1.Toleration{Key: corev1.TaintNodeUnreachable, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(600))}
	spec := &corev1.PodSpec{Tolerations: []corev1.Toleration{own}}
	tolerateOutages(spec)
	want := []corev1.Toleration{own, {Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(30))}}
	if diff := cmp.Diff(want, spec.Tolerations); diff != "" {
		t.Errorf("tolerations differ (-want +got):\n%s", diff)
	}
}
