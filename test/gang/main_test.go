// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"testing"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

const (
	overlay     = "testdata/installed"
	account     = "system:serviceaccount:datacache-system:datacache-manager"
	runtime     = "torch-distributed"
	webhookPort = 19470
	probesPort  = 19471
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

// install applies the overlay, except for the Deployment, runs the manager with the overlay's flag until the test ends, and installs the runtime.
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
		"--rotate-certs=false", "--gangs", "--cert-dir="+cluster.CertDir)
	kubetest.AwaitReady(t, at(probesPort), m.Alive)
	if err := cluster.InstallRuntimes(t.Context(), runtime); err != nil {
		t.Fatal(err)
	}
}

func at(port int) string { return net.JoinHostPort(cluster.Address, strconv.Itoa(port)) }
