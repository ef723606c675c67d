// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectca

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
)

// TestCurrent checks what caches are given while the ConfigMap is missing, there, another one, gone again, and without the key.
func TestCurrent(t *testing.T) {
	t.Parallel()
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	api := fake.NewClientBuilder().WithScheme(scheme).Build()
	now := time.Now()
	source := New("objects/ca", api, func() time.Time { return now })
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "objects", Name: "ca"}}
	set := func(data map[string]string) error {
		config.Data = data
		return api.Update(t.Context(), config)
	}
	for _, step := range []struct {
		name, want string
		after      time.Duration
		change     func() error
	}{
		{"as an earlier leader wrote it", "before", 0, nil},
		{"not looked at again yet", "before", pause - time.Second, func() error {
			config.Data = map[string]string{"ca.crt": "first"}
			return api.Create(t.Context(), config)
		}},
		{"there", "first", time.Second, nil},
		{"another one", "second", every, func() error { return set(map[string]string{"ca.crt": "second"}) }},
		{"without the key", "second", every, func() error { return set(map[string]string{"other": "third"}) }},
		{"gone", "second", every, func() error { return api.Delete(t.Context(), config) }},
	} {
		if step.change != nil {
			if err := step.change(); err != nil {
				t.Fatal(err)
			}
		}
		now = now.Add(step.after)
		if got := source.Current(t.Context(), "before"); got != step.want {
			t.Errorf("%s: %q, want %q", step.name, got, step.want)
		}
	}
	for _, name := range []string{"", "of-the-namespace-of-the-cache"} {
		if got := New(name, api, time.Now).Current(t.Context(), "before"); got != "" {
			t.Errorf("%q: %q is copied, want nothing", name, got)
		}
	}
}
