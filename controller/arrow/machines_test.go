// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package arrow

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/heads"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/controller/podstate"
	"github.com/kubeflow/datacache/controller/workload"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/cachetest"
)

// TestStrands checks which pods on machines that are not ready are deleted without grace period, and what is said of them.
func TestStrands(t *testing.T) {
	t.Parallel()
	since := metav1.NewTime(cachetest.Noon.Add(-time.Minute))
	deleted := func(graceEnds time.Time) *corev1.Pod {
		return cachetest.Pod(wellknown.RoleNode, "c-0-1", func(pod *corev1.Pod) { pod.DeletionTimestamp = new(metav1.NewTime(graceEnds)) })
	}
	for name, c := range map[string]struct {
		outage  outage
		pod     *corev1.Pod
		contact contact
		want    bool
		says    string
	}{
		"silent, not evicted yet": {
			outage{"n2", since, true}, cachetest.Pod(wellknown.RoleNode, "c-0-1"), contactUnknown, false,
			"Kubernetes node n2 has not answered since 2026-05-01T11:59:00Z; pod c-0-1 is replaced 30 s later at the latest",
		},
		"silent, also to its head": {
			outage{"n2", since, true}, cachetest.Pod(wellknown.RoleNode, "c-0-1"), contactLost, true,
			"Kubernetes node n2 has not answered since 2026-05-01T11:59:00Z; pod c-0-1 is replaced 30 s later at the latest",
		},
		"silent, but not to its head": {
			outage{"n2", since, true}, deleted(cachetest.Noon.Add(30 * time.Second)), contactHeld, false,
			"Kubernetes node n2 has not answered since 2026-05-01T11:59:00Z; pod c-0-1 is being replaced",
		},
		"silent, evicted": {
			outage{"n2", since, true}, deleted(cachetest.Noon.Add(30 * time.Second)), contactUnknown, true,
			"Kubernetes node n2 has not answered since 2026-05-01T11:59:00Z; pod c-0-1 is being replaced",
		},
		"its kubelet answers and ends it": {
			outage{"n2", since, false}, deleted(cachetest.Noon.Add(time.Second)), contactUnknown, false,
			"Kubernetes node n2 has not been ready since 2026-05-01T11:59:00Z; pod c-0-1 is being replaced",
		},
		"its kubelet answers and doesn't end it": {
			outage{"n2", since, false}, deleted(cachetest.Noon.Add(-11 * time.Second)), contactUnknown, true,
			"Kubernetes node n2 has not been ready since 2026-05-01T11:59:00Z; pod c-0-1 is being replaced",
		},
		"gone": {
			outage{machine: "n2", silent: true}, cachetest.Pod(wellknown.RoleNode, "c-0-1"), contactUnknown, true,
			"Kubernetes node n2 no longer exists; pod c-0-1 is being replaced",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := c.outage.strands(c.pod, c.contact, cachetest.Noon.Time); got != c.want {
				t.Errorf("strands is %t, want %t", got, c.want)
			}
			if diff := cmp.Diff(&podstate.Trouble{Reason: reasonMachine, Message: c.says}, c.outage.trouble(c.pod), cmp.AllowUnexported(podstate.Trouble{})); diff != "" {
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
	workload.TolerateOutages(spec)
	want := []corev1.Toleration{own, {Key: corev1.TaintNodeNotReady, Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(30))}}
	if diff := cmp.Diff(want, spec.Tolerations); diff != "" {
		t.Errorf("tolerations differ (-want +got):\n%s", diff)
	}
}

// TestLossesAreForgotten checks that nothing is kept of the lost machines of a cache that was deleted before its pods were replaced.
func TestLossesAreForgotten(t *testing.T) {
	t.Parallel()
	for name, deleted := range map[string]func(e *Engine, dc *v1alpha1.DataCache) error{
		"it is being deleted": func(e *Engine, dc *v1alpha1.DataCache) error { return e.Release(t.Context(), dc) },
		"it is gone": func(e *Engine, dc *v1alpha1.DataCache) error {
			return e.ReleaseOrphan(t.Context(), client.ObjectKeyFromObject(dc))
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dc := cachetest.Minimal()
			e, _ := engineOfLost(t, dc)
			if err := e.replaceLost(t.Context(), dc); err != nil {
				t.Fatal(err)
			}
			if len(keptBy(e)) == 0 {
				t.Fatal("nothing is known of the pods that were replaced")
			}
			if err := deleted(e, dc); err != nil {
				t.Fatal(err)
			}
			if left := keptBy(e); len(left) > 0 {
				t.Errorf("%v are kept", left)
			}
		})
	}
}

// TestDeadHeadIsAskedOnce checks that the pods on a lost machine cost one request to a head that does not answer, which may take 2 s.
func TestDeadHeadIsAskedOnce(t *testing.T) {
	t.Parallel()
	dc := cachetest.Minimal()
	e, asked := engineOfLost(t, dc)
	if err := e.replaceLost(t.Context(), dc); err != nil {
		t.Fatal(err)
	}
	if *asked != 1 {
		t.Errorf("the head is asked %d times, want once", *asked)
	}
}

// engineOfLost returns an engine of a cluster in which a cache's head runs on a machine that is ready and does not answer, and three data
// nodes on one that does not exist, and the number of connections to the head.
func engineOfLost(t *testing.T, dc *v1alpha1.DataCache) (e *Engine, asked *int) {
	t.Helper()
	set := setOf(t, dc)
	set.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(dc, v1alpha1.GroupVersion.WithKind("DataCache"))}
	objects := []client.Object{set, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "alive"}}}
	for i := range 4 {
		role, machine := wellknown.RoleNode, "lost"
		if i == 0 {
			role, machine = wellknown.RoleHead, "alive"
		}
		pod := cachetest.Pod(role, fmt.Sprintf("reviews-cache-0-%d", i), func(pod *corev1.Pod) {
			pod.Namespace, pod.Spec.NodeName, pod.Status.Phase = dc.Namespace, machine, corev1.PodRunning
			pod.Labels[wellknown.LabelCache], pod.Labels[lws.GroupIndexLabelKey], pod.Labels[lws.WorkerIndexLabelKey] = dc.Name, "0", strconv.Itoa(i)
		})
		objects = append(objects, pod)
	}
	k := fake.NewClientBuilder().WithScheme(schemeOf(t)).WithObjects(objects...).WithIndex(&corev1.Pod{}, IndexCache, CacheNameOf).Build()
	asked = new(int)
	dial := func(context.Context, *corev1.Pod) (net.Conn, error) {
		*asked++
		return nil, errors.New("no route to host")
	}
	return &Engine{Applier: kube.Applier{Client: k, Live: k}, Heads: heads.Client{Dial: dial, Timeout: time.Second}, Warnings: &podstate.Warnings{Live: k, Now: time.Now}}, asked
}

// keptBy returns the keys of what an engine remembers of caches.
func keptBy(e *Engine) (keys []any) {
	note := func(key, _ any) bool { keys = append(keys, key); return true }
	e.losses.Range(note)
	return keys
}

// setOf is the LeaderWorkerSet of a cache.
func setOf(t *testing.T, dc *v1alpha1.DataCache) *lws.LeaderWorkerSet {
	t.Helper()
	set, err := workload.LeaderWorkerSet(dc, workload.Server{Image: "image"})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// schemeOf has the types that the engine reads and writes.
func schemeOf(t *testing.T) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, lws.AddToScheme, trainer.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return scheme
}
