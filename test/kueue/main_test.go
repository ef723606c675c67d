// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kueue

import (
	"net"
	"os"
	"strconv"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

const (
	overlay     = "../../manifests/overlays/without-runtime"
	account     = "system:serviceaccount:datacache-system:datacache-manager"
	runtime     = "torch-distributed"
	webhookPort = 19460
	probesPort  = 19461
)

var (
	cluster *kubetest.Cluster
	program string // the manager, built
)

func TestMain(m *testing.M) {
	options := kubetest.Options{
		Tools: os.Getenv("DATACACHE_KUBE"), Scheme: v1alpha1.AddToScheme,
		CRDs: []string{"../../manifests/base/crds/datacache.kubeflow.org_datacaches.yaml"},
		// Kueue evicts a TrainJob whose pods are not ready after 5 s, and queues it again a second later.
		Kueue: map[string]any{"waitForPodsReady": map[string]any{
			"timeout": "5s", "requeuingStrategy": map[string]any{"timestamp": "Eviction", "backoffBaseSeconds": 1},
		}},
	}
	os.Exit(kubetest.RunWithProgram(options, "./cmd/manager", nil, func(c *kubetest.Cluster, built string) int {
		cluster, program = c, built
		return m.Run()
	}))
}

// install applies the overlay, except for the Deployment, runs the manager until the test ends, and waits for the twin of the runtime.
func install(t *testing.T) {
	t.Helper()
	if err := cluster.Install(t.Context(), cluster.Render(t, overlay), at(webhookPort)); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := cluster.Kubeconfig(account, "system:serviceaccounts", "system:authenticated")
	if err != nil {
		t.Fatal(err)
	}
	m := proctest.Start(t, "the manager", os.Environ(), program,
		"--kubeconfig="+kubeconfig, "--namespace=datacache-system", "--cache-image=example.com/cacheserver:test", "--metrics=0",
		"--probes="+at(probesPort), "--webhook-host="+cluster.Address, "--webhook-port="+strconv.Itoa(webhookPort),
		"--rotate-certs=false", "--cert-dir="+cluster.CertDir)
	kubetest.AwaitReady(t, at(probesPort), m.Alive)
	if err := cluster.InstallRuntimes(t.Context(), runtime); err != nil {
		t.Fatal(err)
	}
	cluster.Appear(t, &trainer.ClusterTrainingRuntime{}, "", wellknown.TwinName(runtime))
}

func at(port int) string { return net.JoinHostPort(cluster.Address, strconv.Itoa(port)) }
