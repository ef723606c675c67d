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
	"slices"
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
	pods    []string // names
	urls    []string // base URLs that serve objects: those of the pods, and the Service's
	overlay overlay
}

// installObjects applies manifests/object-cache through an overlay, as described in docs/object-cache.md, and removes everything at
// the end of the test. It skips the test if there is one already.
func installObjects(t *testing.T, o overlay) *objectCache {
	t.Helper()
	if cluster.folder == "" {
		err := cluster.Client.Get(t.Context(), client.ObjectKey{Name: objectsNamespace}, &corev1.Namespace{})
		if !apierrors.IsNotFound(err) {
			t.Skipf("the cluster has a namespace %s, which this test would change and remove: %v", objectsNamespace, err)
		}
	}
	folder := o.write(t)
	ctx := context.WithoutCancel(t.Context())
	t.Cleanup(func() {
		if t.Failed() {
			explainObjects(ctx, t)
		}
		if err := kubectl(ctx, "delete", "--ignore-not-found", "-k", folder); err != nil {
			t.Error(err)
		}
	})
	await(t, "the object cache to be applied", func() error { return kubectl(t.Context(), "apply", "-k", folder) })
	objects := &objectCache{overlay: o}
	objects.whole(t)
	return objects
}

// whole waits until all object caches are ready and know each other.
func (o *objectCache) whole(t *testing.T) {
	t.Helper()
	await(t, "the object caches to know each other", func() (err error) {
		o.pods, o.urls, err = objectPods(t)
		return err
	})
}

// overlay is a user's overlay of manifests/object-cache.
type overlay struct {
	team       string            // the namespace of the buckets that are not open to all
	components []string          // of manifests/components
	registries map[string]string // URLs of registries to mirror, by name
	hub        string            // URL of a hub to mirror
	hubToken   string            // what the team has there
}

// withoutObjectCache is a label of nodes on which the DaemonSet has no pod.
const withoutObjectCache = "e2e-without-object-cache"

// registryHosts is the folder of containerd's registry hosts on nodes of hack/cluster.
const registryHosts = "/var/lib/registry-hosts"

// write writes the overlay to a folder: the tags of images, buckets, registries.
func (o overlay) write(t *testing.T) (folder string) {
	t.Helper()
	folder, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := filepath.Abs("../../manifests")
	if err != nil {
		t.Fatal(err)
	}
	if manifests, err = filepath.Rel(folder, manifests); err != nil { // kustomize accepts no absolute path
		t.Fatal(err)
	}
	components, volumes, mirrors, secrets := []string{}, "", "", ""
	for _, name := range o.components {
		components = append(components, filepath.Join(manifests, "components", name))
		switch name {
		case "object-cache-mirrors":
			mirrors = o.mirrors(t)
			secrets = fmt.Sprintf("{name: datacache-hub-tokens, namespace: datacache-object-cache, literals: [%q]}", o.team+"="+o.hubToken)
		case "object-cache-images":
			volumes = fmt.Sprintf("{name: registry-hosts, hostPath: {path: %s}}", registryHosts)
		}
	}
	for name, text := range map[string]string{
		"kustomization.yaml": fmt.Sprintf(`
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [%s]
components: [%s]
images:
- {name: ghcr.io/kubeflow/datacache/objectcache, newName: datacache/objectcache, newTag: dev}
- {name: docker.io/envoyproxy/envoy, newName: datacache/envoy, newTag: dev}
configMapGenerator:
- {name: datacache-object-cache, namespace: datacache-object-cache, behavior: replace, files: [buckets.json]}
secretGenerator: [%s]
generatorOptions: {disableNameSuffixHash: true}
patches:
%s
- target: {kind: DaemonSet, name: datacache-object-cache}
  patch: |-
    apiVersion: apps/v1
    kind: DaemonSet
    metadata: {name: datacache-object-cache}
    spec:
      template:
        spec:
          affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [
            {matchExpressions: [{key: %s, operator: DoesNotExist}]}]}}}
          containers: # this machine's disk may be full of other things
          - {name: object-cache, args: [--min-free=0]}
          volumes: [%s]
`, filepath.Join(manifests, "object-cache"), strings.Join(components, ", "), secrets, mirrors, withoutObjectCache, volumes),
		"buckets.json": fmt.Sprintf(`{"TotalLimit": "2Gi", "Bucket": [
  {"Name": "open", "Public": true, "BucketQuota": "256Mi"},
  {"Name": "images", "Mirror": true, "BucketQuota": "512Mi"},
  {"Name": "models", "Mirror": true, "BucketQuota": "64Mi"},
  {"Name": "team", "BucketQuota": "256Mi", "AllowNamespaces": [%[1]q]},
  {"Name": "tables", "BucketQuota": "512Mi", "AllowNamespaces": [%[1]q]}]}`, o.team),
	} {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return folder
}

// mirrors is a patch with the mirrors file, as in docs/mirrors.md.
func (o overlay) mirrors(t *testing.T) string {
	t.Helper()
	registries := []map[string]string{}
	for name, url := range o.registries {
		registries = append(registries, map[string]string{"name": name, "upstream": url})
	}
	file, err := json.Marshal(map[string]any{
		"images": map[string]any{"bucket": "images", "registries": registries},
		"hub":    map[string]any{"bucket": "models", "upstream": o.hub, "tokens": "/etc/hub-tokens"},
	})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`- patch: |-
    apiVersion: v1
    kind: ConfigMap
    metadata: {name: datacache-mirrors, namespace: datacache-object-cache}
    data: {mirrors.yaml: %q}`, file)
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
// DaemonSet isn't ready or doesn't know all others. The DaemonSet's status may be of before a change of the nodes: on hack/cluster, where
// no taint keeps an object cache off, the nodes are counted.
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
	want := int(set.Status.DesiredNumberScheduled)
	if cluster.folder != "" {
		var nodes corev1.NodeList
		if err := cluster.Client.List(t.Context(), &nodes); err != nil {
			return nil, nil, err
		}
		want = len(slices.DeleteFunc(nodes.Items, func(node corev1.Node) bool {
			_, without := node.Labels[withoutObjectCache]
			return without
		}))
	}
	if ready := int(set.Status.NumberReady); ready == 0 || ready != want || len(pods.Items) != want {
		return nil, nil, fmt.Errorf("%d pods, of which %d are ready and %d wanted", len(pods.Items), ready, want)
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
