// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/kubeflow/datacache/test/kit/proctest"
)

// RunWithProgram is Run for tests that run a program of ours, which they get as a path. command is its package in this checkout, such as
// "./cmd/manager"; flags are those of go build.
func RunWithProgram(options Options, command string, flags []string, tests func(c *Cluster, program string) int) (code int) {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, "kubetest:", err)
		return 1
	}
	ctx := context.Background() //nolint:forbidigo // called from TestMain, which has no context
	dir, err := os.MkdirTemp("", "kubetest-program-")
	if err != nil {
		return fail(err)
	}
	defer func() {
		if err := os.RemoveAll(dir); err != nil {
			code = fail(err)
		}
	}()
	root, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}").Output()
	if err != nil {
		return fail(fmt.Errorf("go list -m: %w", err))
	}
	program := filepath.Join(dir, filepath.Base(command))
	if err := Build(ctx, string(root[:len(root)-1]), command, program, flags...); err != nil {
		return fail(err)
	}
	return Run(options, func(c *Cluster) int { return tests(c, program) })
}

// Build builds a command of a checkout.
func Build(ctx context.Context, checkout, command, program string, flags ...string) error {
	cmd := exec.CommandContext(ctx, "go", append(append([]string{"build"}, flags...), "-o", program, command)...)
	cmd.Dir = checkout
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build %s in %s: %w\n%s", command, checkout, err, out)
	}
	return nil
}

// Render returns a file with the objects of a kustomization, for Install. It is deleted when the test ends.
func (c *Cluster) Render(t testing.TB, kustomization string) (file string) {
	t.Helper()
	text, err := exec.CommandContext(t.Context(), c.Kubectl(), "kustomize", kustomization).Output()
	if err != nil {
		t.Fatalf("render %s: %v", kustomization, err)
	}
	file = filepath.Join(t.TempDir(), "objects.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// ManagerAccount is the user name of datacache's manager in its stock installation.
const ManagerAccount = "system:serviceaccount:datacache-system:datacache-manager"

// RunManager installs a kustomization of datacache, except for its Deployment, and runs the manager, a built program, with that one's rights
// until the test ends. Its webhooks listen at port, its probes at the next one. It returns when the manager is ready.
func (c *Cluster) RunManager(t testing.TB, program, kustomization string, port int, flags ...string) {
	t.Helper()
	at := func(port int) string { return net.JoinHostPort(c.Address, strconv.Itoa(port)) }
	if err := c.Install(t.Context(), c.Render(t, kustomization), at(port)); err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := c.Kubeconfig(ManagerAccount, "system:serviceaccounts", "system:authenticated")
	if err != nil {
		t.Fatal(err)
	}
	stock := []string{
		"--kubeconfig=" + kubeconfig, "--namespace=datacache-system", "--cache-image=example.com/cacheserver:test", "--metrics=0",
		"--probes=" + at(port+1), "--webhook-host=" + c.Address, "--webhook-port=" + strconv.Itoa(port),
		"--rotate-certs=false", "--cert-dir=" + c.CertDir,
	}
	m := proctest.Start(t, "the manager", nil, program, append(stock, flags...)...)
	AwaitReady(t, at(port+1), m.Alive)
}

// AwaitReady waits until the manager with these probes ("host:port") says that it is ready. Before each request it calls alive, which
// ends the test if the manager has ended.
func AwaitReady(t testing.TB, probes string, alive func()) {
	t.Helper()
	Eventually(t, "the manager at "+probes+" to be ready", func() error {
		alive()
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+probes+"/readyz", nil)
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
}
