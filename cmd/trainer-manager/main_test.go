// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	"sigs.k8s.io/yaml"
)

// stockArguments returns the arguments of the manager in the Deployment of Trainer's manifests, in the release that go.mod requires.
func stockArguments(t *testing.T) []string {
	t.Helper()
	module, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/kubeflow/trainer/v2").Output()
	if err != nil {
		t.Fatal(err)
	}
	patch, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(module)), "manifests", "base", "manager", "manager_config_patch.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var deployment appsv1.Deployment
	if err := yaml.Unmarshal(patch, &deployment); err != nil {
		t.Fatal(err)
	}
	containers := deployment.Spec.Template.Spec.Containers
	if len(containers) != 1 || len(containers[0].Args) < 2 {
		t.Fatalf("containers %+v, want one with arguments", containers)
	}
	return containers[0].Args
}

// TestStockArguments checks that the command accepts the arguments of Trainer's own Deployment, in which it replaces Trainer's
// manager, and that they have the same effect. test/plugin checks the other flags.
func TestStockArguments(t *testing.T) {
	args := stockArguments(t)
	cmd := command(func(string) string { return "" })
	if err := cmd.ParseFlags(doubleDashes(args)); err != nil {
		t.Fatalf("%q: %v", args, err)
	}
	for _, arg := range args {
		name, value, _ := strings.Cut(strings.TrimLeft(arg, "-"), "=")
		if flag := cmd.Flags().Lookup(name); flag == nil || !flag.Changed || flag.Name != "zap-log-level" && flag.Value.String() != value {
			t.Errorf("%s was parsed as %+v", arg, flag)
		}
	}
	if !slices.ContainsFunc(args, func(arg string) bool { return strings.Contains(arg, "zap-log-level") }) {
		t.Errorf("Trainer's arguments %q have no --zap-log-level: does this test still read the right file?", args)
	}
}
