// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"fmt"
	"os"
	"testing"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

const (
	overlay     = "testdata/installed"
	runtime     = "torch-distributed"
	webhookPort = 19470 // of the first manager; the second one listens at the next port
)

var (
	cluster *kubetest.Cluster
	program string // the manager, built
)

func TestMain(m *testing.M) {
	if os.Getenv("DATACACHE_SCHEDULERS") == "" {
		fmt.Fprintln(os.Stderr, "gang: run 'make scheduler-tools', and the tests by make or with DATACACHE_SCHEDULERS=$(make -s print-SCHEDULERS)")
		os.Exit(1)
	}
	options := kubetest.Options{
		Tools: os.Getenv("DATACACHE_KUBE"), Scheme: v1alpha1.AddToScheme,
		CRDs:       []string{"../../manifests/base/crds/datacache.kubeflow.org_datacaches.yaml"},
		Schedulers: os.Getenv("DATACACHE_SCHEDULERS"),
	}
	os.Exit(kubetest.RunWithProgram(options, "./cmd/manager", nil, func(c *kubetest.Cluster, built string) int {
		cluster, program = c, built
		return m.Run()
	}))
}

// install runs the manager until the test ends, and installs the runtime.
func install(t *testing.T) {
	t.Helper()
	cluster.RunManager(t, program, overlay, webhookPort, "--gangs")
	if err := cluster.InstallRuntimes(t.Context(), runtime); err != nil {
		t.Fatal(err)
	}
}
