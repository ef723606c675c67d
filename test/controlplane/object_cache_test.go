// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

// TestObjectCacheByTLS checks, with the rights of manifests/object-cache, that a cache which reads through the object cache gets the certificate of
// the object cache's authority, and its servers the URL and the file.
func TestObjectCacheByTLS(t *testing.T) {
	t.Parallel()
	admin, err := cluster.Kubeconfig("admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	const folder = "../../manifests/object-cache/"
	apply := exec.CommandContext(t.Context(), cluster.Kubectl(), "--kubeconfig", admin, "apply", "-f", folder+"namespace.yaml", "-f", folder+"rbac.yaml")
	if text, err := apply.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	ns := cluster.Namespace(t)
	published := &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "datacache-object-cache", Name: "datacache-object-cache-ca"}, Data: map[string]string{"ca.crt": "a certificate"},
	}
	if err := cluster.Client.Create(t.Context(), published); err != nil {
		t.Fatal(err)
	}
	dc := named(ns, "reviews")
	dc.Spec.Arrow.ObjectCache = &v1alpha1.ObjectCache{Bucket: "tables"}
	cluster.Create(t, dc)
	config := &corev1.ConfigMap{}
	cluster.Become(t, config, ns, "reviews-cache-access", "with the authority of the object cache", func() error {
		if got := config.Data["OBJECT_CACHE_CA"]; got != "a certificate" {
			return fmt.Errorf("it has %q", got)
		}
		return nil
	})
	set := appears(t, &lws.LeaderWorkerSet{}, ns, "reviews-cache")
	pod := set.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec
	want := []corev1.EnvVar{
		{Name: "OBJECT_CACHE", Value: "https://datacache-object-cache.datacache-object-cache.svc"},
		{Name: "OBJECT_CACHE_CA_FILE", Value: "/var/run/secrets/datacache/object-cache/ca.crt"},
	}
	for _, v := range want {
		if !slices.Contains(pod.Containers[0].Env, v) {
			t.Errorf("data nodes lack %v: %v", v, pod.Containers[0].Env)
		}
	}
	if err := copies(pod, "object-cache", config.Name, "OBJECT_CACHE_CA", "ca.crt"); err != nil {
		t.Error(err)
	}
}

// copies returns an error unless the pod's volume has a key of a ConfigMap as a file.
func copies(pod corev1.PodSpec, volume, config, key, path string) error {
	for _, v := range pod.Volumes {
		if v.Name != volume || v.Projected == nil {
			continue
		}
		for _, source := range v.Projected.Sources {
			if c := source.ConfigMap; c != nil && c.Name == config && slices.Contains(c.Items, corev1.KeyToPath{Key: key, Path: path}) {
				return nil
			}
		}
	}
	return errors.New("no volume " + volume + " has the key " + key + " of ConfigMap " + config)
}
