// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package manage

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/inject"
)

// TestReadersAreKnownByDefault checks whom caches serve that don't say.
func TestReadersAreKnownByDefault(t *testing.T) {
	for said, want := range map[string]v1alpha1.Readers{"": v1alpha1.ReadersKnown, "Anyone": v1alpha1.ReadersAnyone} {
		var f CacheFlags
		f.Register(pflag.NewFlagSet("manager", pflag.ContinueOnError), func(name string) string {
			return map[string]string{"READERS": said, "CACHE_IMAGE": "x"}[name]
		}, "platform")
		got, err := f.Options(t.Context(), fake.NewClientBuilder().Build())
		if err != nil || got.Readers != want || got.NoAnyone {
			t.Errorf("READERS=%s: %s (%v), want %s, and TrainJobs may choose others", said, got.Readers, err, want)
		}
	}
}

func TestCacheFlags(t *testing.T) {
	secrets := []corev1.LocalObjectReference{{Name: "registry-key"}}
	own := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "platform", Name: "manager-0"},
		Spec: corev1.PodSpec{
			ImagePullSecrets: secrets,
			InitContainers:   []corev1.Container{{Name: "istio-init"}, {Name: "cacheserver", Image: "example.com/cacheserver:v1", ImagePullPolicy: corev1.PullAlways}},
		},
	}
	bare := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "platform", Name: "bare"}}
	tests := []struct {
		name string
		env  map[string]string
		args []string
		want inject.Gate
		err  string
	}{
		{name: "from its own pod", env: map[string]string{"POD_NAME": "manager-0"},
			want: inject.Gate{Image: "example.com/cacheserver:v1", ImagePullPolicy: corev1.PullAlways, ImagePullSecrets: secrets}},
		{name: "a flag wins", env: map[string]string{"POD_NAME": "manager-0"}, args: []string{"--cache-image=other:v2", "--cache-image-pull-policy=Never"},
			want: inject.Gate{Image: "other:v2", ImagePullPolicy: corev1.PullNever, ImagePullSecrets: secrets}},
		{name: "outside of a cluster", env: map[string]string{"CACHE_IMAGE": "other:v2"}, want: inject.Gate{Image: "other:v2"}},
		{name: "no image", err: "--cache-image (env CACHE_IMAGE) is empty"},
		{name: "no pod of that name", env: map[string]string{"POD_NAME": "gone"}, err: "platform/gone (env POD_NAME)"},
		{name: "no init container", env: map[string]string{"POD_NAME": "bare"}, err: "pod platform/bare has no init container cacheserver"},
		{name: "metrics from a namespace that can't be", env: map[string]string{"CACHE_IMAGE": "x", "METRICS_FROM": "Monitoring"}, err: `--metrics-from: "Monitoring", want NAMESPACE or NAMESPACE/POD-LABELS`},
		{name: "metrics from pods that can't be", env: map[string]string{"CACHE_IMAGE": "x"}, args: []string{"--metrics-from=monitoring/app=a=b"}, err: `--metrics-from: "monitoring/app=a=b"`},
		{name: "policy", env: map[string]string{"CACHE_IMAGE": "x"}, args: []string{"--cache-image-pull-policy=always"}, err: `--cache-image-pull-policy: "always", want Always, IfNotPresent or Never`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var f CacheFlags
			set := pflag.NewFlagSet("manager", pflag.ContinueOnError)
			f.Register(set, func(name string) string { return tt.env[name] }, "platform")
			if err := set.Parse(tt.args); err != nil {
				t.Fatal(err)
			}
			got, err := f.Options(t.Context(), fake.NewClientBuilder().WithObjects(own, bare).Build())
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Errorf("the error is %v, want one with %q", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got.Gate); diff != "" || got.Image != tt.want.Image || got.Namespace != "platform" {
				t.Errorf("image %q, namespace %q, and the step (-want +got):\n%s", got.Image, got.Namespace, diff)
			}
		})
	}
}
