// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// buildPlugin builds kubectl datacache.
func buildPlugin(t *testing.T) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "kubectl-datacache")
	if err := kubetest.Build(t.Context(), "../..", "./cmd/kubectl-datacache", program); err != nil {
		t.Fatal(err)
	}
	return program
}

// kubectlSays checks what kubectl datacache says about a TrainJob that trains, its cache of two data nodes, and its ranks.
func kubectlSays(t *testing.T, program string, r *run) {
	t.Helper()
	began := time.Now()
	head := wellknown.CacheName(r.name) + "-0"
	for command, parts := range map[string][]string{
		"list":   {r.namespace, r.name, "Ready", "100%"},
		"status": {"cache       " + r.namespace + "/" + r.name, "state       Ready: Loaded: all ", "used by     " + r.namespace + "/" + r.name},
		"why": {
			"ok     TrainJob " + r.namespace + "/" + r.name + ": active", "has a step that waits for the cache",
			"ok     DataCache " + r.namespace + "/" + r.name + ": Ready", "ok     pods of the TrainJob: ",
		},
		"events":                      {"CacheReady", "trainjob/" + r.name, "Scheduled", "pod/" + head},
		"logs":                        {"level=INFO"},
		"logs --server=node --tail=1": {head + "-1  ", head + "-2  "},
		"logs --server=gate":          {"ready: "},
		"top --over=1s":               {"NAMESPACE", "ROWS/S", head, "DATA NODE", "WHO WAITS", r.name + "   0   "},
	} {
		args := append(strings.Fields(command), r.name)
		if command == "list" {
			args = args[:1]
		}
		await(t, "kubectl datacache "+command, func() error { // events may come late, and a reader may be between two requests
			out, err := exec.CommandContext(t.Context(), program, append(args, "--kubeconfig="+cluster.file, "--namespace="+r.namespace)...).CombinedOutput()
			for _, part := range parts {
				if !strings.Contains(string(out), part) {
					err = errors.Join(err, fmt.Errorf("it lacks %q", part))
				}
			}
			if err != nil {
				return fmt.Errorf("%w:\n%s", err, out)
			}
			return nil
		})
	}
	t.Logf("kubectl datacache took %s for all", time.Since(began).Round(time.Millisecond))
}

// TestDoctor checks that kubectl datacache doctor finds all in order, with pods that really connect, and leaves none behind.
func TestDoctor(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	out, err := exec.CommandContext(t.Context(), buildPlugin(t), "doctor", "--kubeconfig="+cluster.file, "--namespace="+ns, "--patience=2m").CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Errorf("it ends with %v, want exit code 0", err)
	}
	for _, part := range []string{
		"ok     kinds: ", "ok     manager: Deployment ", "ok     webhook's authority: valid until ", "ok     webhook: the API server reaches it", "ok     manager's rights: all ",
		"ok     admission of pods: ", "ok     image: ", "ok     DNS: pods resolve kubernetes.default.svc:443, datacache-webhook.", "ok     network: ", "ok     NetworkPolicies: are enforced",
	} {
		if !strings.Contains(string(out), part) {
			t.Errorf("it lacks %q", part)
		}
	}
	await(t, "its pods to be gone", func() error {
		var left corev1.PodList
		if err := cluster.Client.List(t.Context(), &left, client.InNamespace(ns)); err != nil {
			return err
		}
		if len(left.Items) > 0 {
			return fmt.Errorf("%d are left", len(left.Items))
		}
		return nil
	})
}
