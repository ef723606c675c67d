// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/internal/wellknown"
)

// release is a release that was published into a registry without TLS.
type release struct {
	registry string   // HOST:PORT/PATH
	version  string   // v0.1.0
	images   []string // by digest, as pods name them
}

// TestRelease installs datacache from the registry of a release alone, by its chart and in place of what hack/cluster has installed, and trains.
// All pods of datacache and of the cache must run the released images.
//
// It is not parallel: it is the only test of its run, which hack/release/rehearse starts.
func TestRelease(t *testing.T) {
	registry := os.Getenv("E2E_RELEASE")
	if registry == "" {
		t.Skip("no release: 'make release-rehearsal' makes one and runs this test")
	}
	if cluster == nil || cluster.folder == "" {
		t.Fatalf("E2E_RELEASE=%s, but no cluster whose nodes can be told of that registry: set DATACACHE_CLUSTER", registry)
	}
	r := openRelease(t, registry)
	r.allowPulls(t)
	ns := namespace(t)
	c := newCharts(t, registry+"/charts", fmt.Sprintf("{registry: %q}", registry))
	t.Cleanup(c.restore)
	c.must(c.run(takeOver, "--version="+strings.TrimPrefix(r.version, "v")))
	await(t, "managers of the release", func() error { return r.managers(t) })
	await(t, "webhook and twin of the release", func() error {
		twin := &trainer.ClusterTrainingRuntime{}
		if err := cluster.Client.Get(t.Context(), client.ObjectKey{Name: wellknown.TwinName("torch-distributed")}, twin); err != nil {
			return err
		}
		if image := stepOf(t, twin.Spec).Image; !slices.Contains(r.images, image) {
			return fmt.Errorf("the step runs %s", image)
		}
		return webhookAnswers(t, ns)
	})

	job := train(t, ns, small(t))
	seen := map[string]bool{}
	await(t, "head, data nodes and step to run the released image", func() error { return r.cache(t, ns, seen) })
	job.ends(t, trainer.TrainJobComplete)
	readOnce(t, job, job.look(t), 1, reviews.Rows)
}

// openRelease asks the registry for the digests that the version's tags name.
func openRelease(t *testing.T, registry string) *release {
	t.Helper()
	text, err := os.ReadFile("../../VERSION")
	if err != nil {
		t.Fatal(err)
	}
	r := &release{registry: registry, version: strings.TrimSpace(string(text))}
	host, path, _ := strings.Cut(registry, "/")
	for _, name := range []string{"manager", "cacheserver"} {
		url := fmt.Sprintf("http://%s/v2/%s/%s/manifests/%s", host, path, name, r.version)
		request, err := http.NewRequestWithContext(t.Context(), http.MethodHead, url, nil)
		if err != nil {
			t.Fatalf("E2E_RELEASE=%s: want HOST:PORT/PATH: %v", registry, err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatalf("E2E_RELEASE=%s: %v", registry, err)
		}
		_ = response.Body.Close()
		digest := response.Header.Get("Docker-Content-Digest")
		if response.StatusCode != http.StatusOK || digest == "" {
			t.Fatalf("E2E_RELEASE=%s: HEAD %s: %s, digest %q", registry, url, response.Status, digest)
		}
		r.images = append(r.images, fmt.Sprintf("%s/%s@%s", registry, name, digest))
	}
	return r
}

// allowPulls tells the nodes' containerd that the registry speaks HTTP, until the end of the test. containerd 1.6 reads no hosts.toml that has
// no table host.
func (r *release) allowPulls(t *testing.T) {
	t.Helper()
	host, _, _ := strings.Cut(r.registry, "/")
	folder := registryHosts + "/" + host
	script := fmt.Sprintf(`mkdir -p %s && printf 'server = "http://%s"\n[host."http://%[2]s"]\n' >%[1]s/hosts.toml`, folder, host)
	for _, node := range []string{"1", "2"} {
		t.Cleanup(func() { onCluster(t, "node", node, "rm", "-r", folder) })
		onCluster(t, "node", node, "bash", "-euc", script)
	}
}

// managers returns an error until all the manager's pods run the released images.
func (r *release) managers(t *testing.T) error {
	t.Helper()
	for _, pod := range pods(t, managerHome, managerLabels) {
		if err := r.runs(&pod); err != nil {
			return err
		}
	}
	return nil
}

// cache returns an error until it has seen a head, a data node and an initializer step of the namespace, in this call or before, that run the
// released image, and as long as one of them does not.
func (r *release) cache(t *testing.T, namespace string, seen map[string]bool) error {
	t.Helper()
	var list corev1.PodList
	if err := cluster.Client.List(t.Context(), &list, client.InNamespace(namespace)); err != nil {
		return err
	}
	for _, pod := range list.Items {
		role := pod.Labels[wellknown.LabelRole]
		if step := pod.Labels["jobset.sigs.k8s.io/replicatedjob-name"]; role == "" && step != wellknown.StepName {
			continue // training
		} else if role == "" {
			role = step
		}
		if err := r.runs(&pod); err != nil {
			return err
		}
		seen[role] = true
	}
	for _, role := range []string{wellknown.RoleHead, wellknown.RoleNode, wellknown.StepName} {
		if !seen[role] {
			return fmt.Errorf("no %s yet, only %v", role, seen)
		}
	}
	return nil
}

// runs returns an error until each container of the pod runs a released image, of the digest that its kubelet reports.
func (r *release) runs(pod *corev1.Pod) error {
	ids := map[string]string{} // by container
	for _, status := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		ids[status.Name] = status.ImageID
	}
	for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		_, digest, _ := strings.Cut(container.Image, "@")
		if !slices.Contains(r.images, container.Image) || !strings.HasSuffix(ids[container.Name], "@"+digest) {
			return fmt.Errorf("container %s of pod %s has the image %s and runs %q, want one of %q",
				container.Name, pod.Name, container.Image, ids[container.Name], r.images)
		}
	}
	return nil
}
