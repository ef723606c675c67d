// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"slices"
	"testing"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/test/kit/cachetest"
)

func TestWriters(t *testing.T) {
	t.Parallel()
	named := []string{"team-b/etl", "team-a/*"}
	for name, c := range map[string]struct {
		puts    *v1alpha1.Puts
		readers v1alpha1.Readers
		want    []string
	}{
		"no puts":          {nil, v1alpha1.ReadersKnown, nil},
		"off":              {&v1alpha1.Puts{Writers: named}, v1alpha1.ReadersKnown, nil},
		"its namespace":    {&v1alpha1.Puts{Enabled: true}, v1alpha1.ReadersKnown, []string{"team-a/*"}},
		"named":            {&v1alpha1.Puts{Enabled: true, Writers: named}, v1alpha1.ReadersKnown, []string{"team-a/*", "team-b/etl"}},
		"anyone":           {&v1alpha1.Puts{Enabled: true}, v1alpha1.ReadersAnyone, nil},
		"named, of anyone": {&v1alpha1.Puts{Enabled: true, Writers: named}, v1alpha1.ReadersAnyone, []string{"team-a/*", "team-b/etl"}},
	} {
		dc := cachetest.Minimal()
		dc.Namespace, dc.Spec.Arrow.Puts = "team-a", c.puts
		if got := Writers(dc, c.readers); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q may put, want %q", name, got, c.want)
		}
	}
	dc := cachetest.Minimal()
	dc.Spec.Arrow.Puts = &v1alpha1.Puts{Enabled: true}
	before, _ := podSettingsHash(dc)
	dc.Spec.Arrow.Puts.Writers = named
	if after, _ := podSettingsHash(dc); after != before {
		t.Error("other writers replace the pods")
	}
}

func TestPuts(t *testing.T) {
	t.Parallel()
	dc := cachetest.Minimal()
	dc.Spec.Arrow.Puts = &v1alpha1.Puts{Enabled: true, Limit: new(quantity("16Gi")), LimitPerWriter: new(quantity("4Gi")), Keep: v1alpha1.KeepDisk}
	for enabled, want := range map[bool]string{true: "true disk 17179869184 4294967296", false: "   "} {
		dc.Spec.Arrow.Puts.Enabled = enabled
		head, node := headPod(dc, Server{}).Spec.Containers[0], nodePod(dc, Server{}).Spec.Containers[0]
		env := map[string]string{}
		for _, v := range head.Env {
			env["head "+v.Name] = v.Value
		}
		for _, v := range node.Env {
			env["node "+v.Name] = v.Value
		}
		if got := env["head PUTS"] + " " + env["head PUT_KEEP"] + " " + env["node PUT_LIMIT"] + " " + env["node PUT_LIMIT_PER_WRITER"]; got != want {
			t.Errorf("enabled %v: %q, want %q", enabled, got, want)
		}
	}
}
