// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kueue

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/inject"
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
	dir, err := os.MkdirTemp("", "kueue-")
	if err != nil {
		os.Exit(fail(err))
	}
	code := run(m, dir)
	if err := os.RemoveAll(dir); err != nil {
		code = fail(err)
	}
	os.Exit(code)
}

func run(m *testing.M, dir string) int {
	program = filepath.Join(dir, "manager")
	build := exec.Command("go", "build", "-o", program, "github.com/kubeflow/datacache/cmd/manager")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fail(fmt.Errorf("build the manager: %w", err))
	}
	options := kubetest.Options{
		Tools: os.Getenv("DATACACHE_KUBE"), Scheme: v1alpha1.AddToScheme,
		CRDs: []string{"../../manifests/base/crds/datacache.kubeflow.org_datacaches.yaml"},
		// Kueue evicts a TrainJob whose pods are not ready after 5 s, and queues it again a second later.
		Kueue: map[string]any{"waitForPodsReady": map[string]any{
			"timeout": "5s", "requeuingStrategy": map[string]any{"timestamp": "Eviction", "backoffBaseSeconds": 1},
		}},
	}
	return kubetest.Run(options, func(c *kubetest.Cluster) int {
		cluster = c
		return m.Run()
	})
}

func fail(err error) int {
	fmt.Fprintln(os.Stderr, "kueue:", err)
	return 1
}

// install applies the overlay, except for the Deployment, runs the manager until the test ends, and waits for the twin of the runtime.
func install(t *testing.T) {
	t.Helper()
	text, err := exec.CommandContext(t.Context(), cluster.Kubectl(), "kustomize", overlay).Output()
	if err != nil {
		t.Fatalf("render %s: %v", overlay, err)
	}
	file := filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cluster.Install(t.Context(), file, at(webhookPort)); err != nil {
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
	kubetest.Eventually(t, "the manager to be ready", func() error {
		m.Alive()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+at(probesPort)+"/readyz", nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return fmt.Errorf("/readyz says %s", response.Status)
		}
		return nil
	})
	if err := cluster.InstallRuntimes(t.Context(), runtime); err != nil {
		t.Fatal(err)
	}
	cluster.Appear(t, &trainer.ClusterTrainingRuntime{}, "", inject.TwinName(runtime))
}

func at(port int) string { return net.JoinHostPort(cluster.Address, strconv.Itoa(port)) }
