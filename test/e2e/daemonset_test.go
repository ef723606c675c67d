// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The namespace of manifests/object-cache, and the audience of its tokens.
const (
	objectsNamespace = "datacache-object-cache"
	objectsService   = "http://datacache-object-cache.datacache-object-cache.svc"
	objectsAudience  = "datacache-object-cache"
	objectsPort      = 8000
)

// objectCache is the object cache of the cluster. Its buckets "team" and "tables" are open to one namespace, "open" to all.
type objectCache struct {
	pods []string // names
	urls []string // base URLs that serve objects: those of the pods, and the Service's
}

// installObjects applies manifests/object-cache through an overlay, as described in docs/object-cache.md, and removes everything at
// the end of the test. It skips the test if there is one already.
func installObjects(t *testing.T, team string) *objectCache {
	t.Helper()
	if cluster.folder == "" {
		err := cluster.Client.Get(t.Context(), client.ObjectKey{Name: objectsNamespace}, &corev1.Namespace{})
		if !apierrors.IsNotFound(err) {
			t.Skipf("the cluster has a namespace %s, which this test would change and remove: %v", objectsNamespace, err)
		}
	}
	overlay := objectsOverlay(t, team)
	ctx := context.WithoutCancel(t.Context())
	t.Cleanup(func() {
		if t.Failed() {
			explainObjects(ctx, t)
		}
		if err := kubectl(ctx, "delete", "--ignore-not-found", "-k", overlay); err != nil {
			t.Error(err)
		}
	})
	await(t, "the object cache to be applied", func() error { return kubectl(t.Context(), "apply", "-k", overlay) })
	o := &objectCache{}
	await(t, "the object caches to know each other", func() (err error) {
		o.pods, o.urls, err = objectPods(t)
		return err
	})
	return o
}

// objectsOverlay writes a user's overlay: the image's tag, and the buckets.
func objectsOverlay(t *testing.T, team string) string {
	t.Helper()
	folder, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := filepath.Abs("../../manifests/object-cache")
	if err != nil {
		t.Fatal(err)
	}
	if manifests, err = filepath.Rel(folder, manifests); err != nil { // kustomize accepts no absolute path
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"kustomization.yaml": fmt.Sprintf(`
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [%s]
images: [{name: ghcr.io/kubeflow/datacache/cacheserver, newName: datacache/cacheserver, newTag: dev}]
configMapGenerator:
- {name: datacache-object-cache, namespace: datacache-object-cache, behavior: replace, files: [buckets.json]}
patches: # this machine's disk may be full of other things
- target: {kind: DaemonSet, name: datacache-object-cache}
  patch: |-
    - {op: replace, path: /spec/template/spec/containers/0/args, value: [object-cache, --min-free=0]}
`, manifests),
		"buckets.json": fmt.Sprintf(`{"TotalLimit": "1Gi", "Bucket": [
  {"Name": "open", "Public": true, "BucketQuota": "256Mi"},
  {"Name": "team", "BucketQuota": "256Mi", "AllowNamespaces": [%[1]q]},
  {"Name": "tables", "BucketQuota": "512Mi", "AllowNamespaces": [%[1]q]}]}`, team),
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// kubectl runs kubectl, from hack/kube or PATH, on the tests' cluster.
func kubectl(ctx context.Context, arguments ...string) error {
	path := filepath.Join(os.Getenv("DATACACHE_KUBE"), "bin", "kubectl")
	if _, err := os.Stat(path); err != nil {
		path = "kubectl"
	}
	text, err := exec.CommandContext(ctx, path, append([]string{"--kubeconfig", os.Getenv("E2E_KUBECONFIG")}, arguments...)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", strings.Join(arguments, " "), err, text)
	}
	return nil
}

// objectPods returns the object caches' pods and the addresses where each serves objects; it returns an error while one of the
// DaemonSet isn't ready or doesn't know all others.
func objectPods(t *testing.T) (names, urls []string, err error) {
	t.Helper()
	var set appsv1.DaemonSet
	var pods corev1.PodList
	err = errors.Join(
		cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: objectsNamespace, Name: "datacache-object-cache"}, &set),
		cluster.Client.List(t.Context(), &pods, client.InNamespace(objectsNamespace), client.MatchingLabels(set.Spec.Template.Labels)),
	)
	if err != nil {
		return nil, nil, err
	}
	if s := set.Status; s.NumberReady == 0 || s.NumberReady != s.DesiredNumberScheduled || len(pods.Items) != int(s.NumberReady) {
		return nil, nil, fmt.Errorf("%d pods, of which %d are ready and %d wanted", len(pods.Items), s.NumberReady, s.DesiredNumberScheduled)
	}
	for _, pod := range pods.Items {
		text, err := podPage(t, objectsNamespace, pod.Name, "status")
		if err != nil {
			return nil, nil, err
		}
		var status struct{ Members int }
		if err := json.Unmarshal(text, &status); err != nil {
			return nil, nil, fmt.Errorf("/status of %s is %q: %w", pod.Name, text, err)
		}
		if status.Members != len(pods.Items) {
			return nil, nil, fmt.Errorf("%s shares the keys with %d, itself included, want %d", pod.Name, status.Members, len(pods.Items))
		}
		names = append(names, pod.Name)
		urls = append(urls, "http://"+net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(objectsPort)))
	}
	return names, append(urls, objectsService), nil
}

// explainObjects logs the object caches' logs.
func explainObjects(ctx context.Context, t *testing.T) {
	t.Helper()
	var pods corev1.PodList
	if err := cluster.Client.List(ctx, &pods, client.InNamespace(objectsNamespace)); err != nil {
		t.Log(err)
	}
	for _, pod := range pods.Items {
		text, err := cluster.logs.CoreV1().Pods(objectsNamespace).GetLogs(pod.Name, &corev1.PodLogOptions{TailLines: new(int64(30))}).DoRaw(ctx)
		t.Logf("pod %s is %s: %v\n%s", pod.Name, pod.Status.Phase, err, text)
	}
}

// podMetric is the sum of a metric over its labels and the pods, at least one of which must have it.
func podMetric(t *testing.T, namespace string, pods []string, name string) (total float64) {
	t.Helper()
	found := false
	for _, pod := range pods {
		text, err := podPage(t, namespace, pod, "metrics")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
			if base, _, _ := strings.Cut(series, "{"); base != name {
				continue
			}
			n, err := strconv.ParseFloat(value, 64)
			if err != nil {
				t.Fatalf("%s of pod %s: %v", name, pod, err)
			}
			total, found = total+n, true
		}
	}
	if !found {
		t.Fatalf("none of the pods %v has a metric %s", pods, name)
	}
	return total
}
