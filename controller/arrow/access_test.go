// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package arrow

import (
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/test/kit/cachetest"
)

// TestReadersOf checks whom a cache serves: as it says, else as its pods began, else as the manager says; and nobody unknown where that is not
// allowed.
func TestReadersOf(t *testing.T) {
	t.Parallel()
	const known, anyone = v1alpha1.ReadersKnown, v1alpha1.ReadersAnyone
	for name, tt := range map[string]struct {
		says, began, manager v1alpha1.Readers
		runs, noAnyone       bool
		want                 v1alpha1.Readers
	}{
		"new":                              {manager: known, want: known},
		"new, by default":                  {manager: anyone, want: anyone},
		"it says":                          {says: anyone, manager: known, want: anyone},
		"it says, and runs":                {says: known, began: anyone, manager: anyone, runs: true, want: known},
		"runs, and the manager's changed":  {began: anyone, manager: known, runs: true, want: anyone},
		"runs, from before there were any": {manager: known, runs: true, want: known},
		"released, and starts again":       {began: anyone, manager: known, want: known},
		"anyone is not allowed":            {says: anyone, began: anyone, manager: anyone, runs: true, noAnyone: true, want: known},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dc := cachetest.Minimal()
			dc.Spec.Access.Readers = tt.says
			api := fake.NewClientBuilder().WithScheme(schemeOf(t))
			if tt.runs {
				api.WithObjects(setOf(t, dc))
			}
			e := &Engine{Applier: kube.Applier{Client: api.Build()}, Readers: tt.manager, NoAnyone: tt.noAnyone}
			if got, err := e.readersOf(t.Context(), dc, tt.began); err != nil || got != tt.want {
				t.Errorf("it serves %s (%v), want %s", got, err, tt.want)
			}
		})
	}
}
