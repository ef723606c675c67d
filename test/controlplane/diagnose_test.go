// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/diagnose"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// blocks returns an error unless the diagnosis of the TrainJob ends with a finding that blocks it and has the parts.
func blocks(t *testing.T, job types.NamespacedName, parts []string) error {
	t.Helper()
	findings, err := diagnose.Why(t.Context(), cluster.Client, nil, job)
	if err != nil {
		return err
	}
	last := findings[len(findings)-1]
	if !last.Blocks {
		return fmt.Errorf("nothing blocks it: %+v", findings)
	}
	text := last.State
	if last.Fix != "" {
		text += "; fix: " + last.Fix
	}
	return lacks(text, parts)
}

// TestWhy checks the diagnosis of TrainJobs without an obstacle in their cache; TestObstacles has the others.
func TestWhy(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	key := func(name string) types.NamespacedName { return types.NamespacedName{Namespace: ns, Name: name} }
	say := func(name string, parts ...string) {
		t.Helper()
		kubetest.Eventually(t, "the diagnosis of "+name, func() error {
			findings, err := diagnose.Why(t.Context(), cluster.Client, nil, key(name))
			if err != nil {
				return err
			}
			return lacks(fmt.Sprintf("%+v", findings), parts)
		})
	}
	bare := cacheJob(ns, "bare", table)
	bare.Spec.Initializer = nil
	cluster.Create(t, bare)
	say("bare", "the TrainJob asks for no cache")

	waiting := cacheJob(ns, "waiting", table, tableEnv()...)
	waiting.Spec.Suspend = new(true)
	cluster.Create(t, waiting)
	say("waiting", "suspended: its cache starts when it runs", "Blocks:true", "Kueue")
	kubetest.Eventually(t, "the event of a suspended TrainJob", func() error {
		return recorded(t, waiting, corev1.EventTypeNormal, "CacheUserWaits", []string{"suspended: its cache starts when it runs"})
	})

	cluster.Kubelet.Play(ns, func(pod *corev1.Pod) kubetest.Act {
		if pod.Labels[wellknown.LabelReplicatedJob] == wellknown.StepName {
			return kubetest.Act{Exit: new(int32(0))}
		}
		return kubetest.Act{}
	})
	served(t, ns, "train")
	cluster.Create(t, cacheJob(ns, "train", table, tableEnv()...))
	cluster.DataCache(t, ns, "train", v1alpha1.StateReady)
	say("train", "has a step that waits for the cache", "Ready: Loaded: all 1000 rows are in memory", "pods of the TrainJob")
	if err := blocks(t, key("train"), nil); err == nil {
		t.Error("the diagnosis says that a TrainJob with a loaded cache is blocked")
	}
	if _, err := diagnose.Why(t.Context(), cluster.Client, nil, key("nobody")); client.IgnoreNotFound(err) != nil || err == nil {
		t.Errorf("a TrainJob that does not exist: %v, want not found", err)
	}
}
