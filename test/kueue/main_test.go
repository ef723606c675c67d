// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kueue

import (
	"os"
	"testing"
	"time"

	"github.com/go-logr/logr"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

const (
	overlay     = "testdata/installed"
	runtime     = "torch-distributed"
	webhookPort = 19460     // of the first manager; the second one listens at the next port
	podsTime    = time.Hour // within which Kueue wants the pods of a TrainJob to be ready
)

var (
	cluster *kubetest.Cluster
	program string // the manager, built
)

func TestMain(m *testing.M) {
	ctrl.SetLogger(logr.Discard())
	klog.SetLogger(logr.Discard()) // it would write to os.Stderr, which testing replaces under -json
	options := kubetest.Options{
		Tools: os.Getenv("DATACACHE_KUBE"), Scheme: v1alpha1.AddToScheme,
		CRDs: []string{"../../manifests/base/crds/datacache.kubeflow.org_datacaches.yaml"},
		// Kueue evicts a TrainJob whose pods are not ready within podsTime, and queues it again a second later. No test waits that long: age moves the
		// times in a Workload's conditions into the past.
		Kueue: map[string]any{"waitForPodsReady": map[string]any{
			"timeout": podsTime.String(), "requeuingStrategy": map[string]any{"timestamp": "Eviction", "backoffBaseSeconds": 1},
		}},
	}
	os.Exit(kubetest.RunWithProgram(options, "./cmd/manager", nil, func(c *kubetest.Cluster, built string) int {
		cluster, program = c, built
		return m.Run()
	}))
}

// install runs the manager until the test ends, and waits for the twin of the runtime.
func install(t *testing.T) {
	t.Helper()
	cluster.RunManager(t, program, overlay, webhookPort, "--kueue")
	installRuntime(t)
}

func installRuntime(t *testing.T) {
	t.Helper()
	if err := cluster.InstallRuntimes(t.Context(), runtime); err != nil {
		t.Fatal(err)
	}
	cluster.Appear(t, &trainer.ClusterTrainingRuntime{}, "", wellknown.TwinName(runtime))
}
