// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// The Service of manifests/components/envoy, and the port of the object caches where Envoys get their configuration.
const (
	envoyService = "http://datacache-envoy.datacache-object-cache.svc"
	xdsPort      = 18000
)

// throughEnvoy checks that pods of both nodes read through Envoy, and that Envoy sends each request to the node that has the key.
func throughEnvoy(t *testing.T, objects *objectCache, namespace string) {
	t.Helper()
	await(t, "Envoys to be ready", func() error {
		set := &appsv1.DaemonSet{}
		err := cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: objectsNamespace, Name: "datacache-envoy"}, set)
		if s := set.Status; err == nil && (s.NumberReady != 2 || s.ObservedGeneration != set.Generation) {
			err = fmt.Errorf("%d of %d are", s.NumberReady, s.DesiredNumberScheduled)
		}
		return err
	})
	forwards := func() float64 {
		return podMetric(t, objectsNamespace, objects.pods, "datacache_objectcache_forwards_total")
	}
	var keys []string
	for i := range 50 {
		keys = append(keys, "team/by-envoy-"+strconv.Itoa(i))
	}
	visitors := []*corev1.Pod{visitor(t, namespace, "n1"), visitor(t, namespace, "n2")}
	await(t, "object caches to forward what they get without Envoy", func() error {
		if got := visits(t, visitors[0], "PUT", objectsService, false, keys); got[2] != len(keys) {
			return fmt.Errorf("the answers are %v, by status/100", got)
		}
		return nil
	})
	if forwards() == 0 {
		t.Error("no request was sent on without Envoy: the test shows nothing of that")
	}
	await(t, "requests to reach the node that has their key", func() error { // Envoy may know of a change a moment later
		before := forwards()
		for _, pod := range visitors {
			for _, method := range []string{"PUT", "GET"} {
				if got := visits(t, pod, method, envoyService, false, keys); got[2] != len(keys) {
					return fmt.Errorf("%s by Envoy from pod %s is answered %v, by status/100", method, pod.Name, got)
				}
			}
		}
		if sent := forwards() - before; sent != 0 {
			return fmt.Errorf("%g requests were sent on", sent)
		}
		return nil
	})
	if connects(t, namespace, "stranger", objectPodOn(t, "n1").Status.PodIP, xdsPort, briefly) {
		t.Error("a pod that is no Envoy connects to the port of Envoys' configuration")
	}
}

// reachNearest checks which object cache a pod of each node reaches, by trafficDistribution (each node is a zone) and by the component
// object-cache-local: when all nodes have one, and when n1 has none. There, containerd pulls from the registry as it does without a mirror.
func reachNearest(t *testing.T, objects *objectCache, registry *origin, namespace string) {
	t.Helper()
	near, far := visitor(t, namespace, "n1"), visitor(t, namespace, "n2")
	local := objects.overlay
	local.components = append(slices.Clone(local.components), "object-cache-local")
	apply := func(o overlay) {
		t.Helper()
		folder := o.write(t)
		await(t, "the overlay to be applied", func() error { return kubectl(t.Context(), "apply", "-k", folder) })
	}
	for _, url := range objects.urls { // or one of them lacks the metric
		if got := visits(t, near, "GET", url, true, []string{"team/none"}); got[4] != 1 {
			t.Fatalf("a key that is nowhere is answered %v at %s", got, url)
		}
	}
	reaches(t, objects, near, "n1")
	reaches(t, objects, far, "n2")
	apply(local)
	reaches(t, objects, near, "n1")
	reaches(t, objects, far, "n2")

	remove := `{"metadata":{"labels":{"` + withoutObjectCache + `":%s}}}`
	editNode(t, "n1", fmt.Sprintf(remove, `""`), fmt.Sprintf(remove, "null"))
	hostsFile(t, "n1", false)
	objects.whole(t)
	pullsItself(t, registry, namespace)
	reaches(t, objects, near, "")
	reaches(t, objects, far, "n2")
	apply(objects.overlay)
	reaches(t, objects, near, "n2")
	reaches(t, objects, far, "n2")
}

// pullsItself checks that containerd of n1 pulls an image from the registry.
func pullsItself(t *testing.T, registry *origin, namespace string) {
	t.Helper()
	registry.direct()
	image := registry.push(t, "acme/direct")
	starts(t, imagePod(namespace, "direct", "n1", image))
	if ranges := registry.direct(); len(ranges) < len(image.Blobs) {
		t.Errorf("containerd asked the registry for the parts %q of %d blobs", ranges, len(image.Blobs))
	}
}

// reaches waits until the object cache on a node, and no other, gets a pod's requests to the Service; none does if the node is "".
func reaches(t *testing.T, objects *objectCache, pod *corev1.Pod, node string) {
	t.Helper()
	keys := slices.Repeat([]string{"team/none"}, 20)
	if node == "" {
		keys = keys[:2] // each takes until the client's patience ends
	}
	count := func() map[string]float64 {
		counts := map[string]float64{}
		for _, name := range objects.pods {
			cache := &corev1.Pod{}
			if err := cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: objectsNamespace, Name: name}, cache); err != nil {
				t.Fatal(err)
			}
			counts[cache.Spec.NodeName] = podMetric(t, objectsNamespace, []string{name}, "datacache_objectcache_misses_total")
		}
		return counts
	}
	await(t, fmt.Sprintf("pod %s to reach the object cache of node %q", pod.Name, node), func() error {
		before := count()
		answers := visits(t, pod, "GET", objectsService, true, keys)
		got := map[string]float64{}
		for name, n := range count() {
			if n > before[name] {
				got[name] = n - before[name]
			}
		}
		want, status := map[string]float64{}, 0
		if node != "" {
			want[node], status = float64(len(keys)), 4
		}
		if !maps.Equal(got, want) || answers[status] != len(keys) {
			return fmt.Errorf("requests reached %v, with answers %v by status/100, want %v", got, answers, want)
		}
		return nil
	})
}

// visitor is a pod on a node that stays, with a token for object caches.
func visitor(t *testing.T, namespace, node string) *corev1.Pod {
	t.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, GenerateName: "visitor-" + node + "-"}}
	pod.Spec = corev1.PodSpec{
		NodeSelector:                  map[string]string{corev1.LabelHostname: node},
		TerminationGracePeriodSeconds: new(int64(1)),
		Containers: []corev1.Container{{
			Name: "visitor", Image: trainerImage, Command: []string{"sleep", "infinity"},
			VolumeMounts: []corev1.VolumeMount{{Name: "object-cache", MountPath: "/var/run/object-cache"}},
		}},
		Volumes: []corev1.Volume{objectsToken()},
	}
	starts(t, pod)
	return pod
}

// visitScript prints how often a status from n00 to n99 was an answer, by n; 0 stands for no connection.
const visitScript = `
import http.client, json, sys, urllib.error, urllib.request
method, base, local, *keys = sys.argv[1:]
counts = [0] * 6
for key in keys:
    headers = {"Authorization": "Bearer " + open("/var/run/object-cache/token").read()}
    if local == "true":
        headers["Datacache-Hop"] = "1"
    body = b"by a pod" if method == "PUT" else None
    request = urllib.request.Request(base + "/v1/objects/" + key, body, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=3) as answer:
            counts[answer.status // 100] += 1
    except urllib.error.HTTPError as error:
        counts[error.code // 100] += 1
    except (OSError, http.client.HTTPException):
        counts[0] += 1
print(json.dumps(counts))
`

// visits sends a request for each key from a visitor and counts the answers by the first figure of their status, 0 for none. With local, whoever
// gets a request answers it itself.
func visits(t *testing.T, pod *corev1.Pod, method, url string, local bool, keys []string) (answers [6]int) {
	t.Helper()
	arguments := append([]string{
		"--kubeconfig", os.Getenv("E2E_KUBECONFIG"), "--namespace", pod.Namespace, "exec", pod.Name, "--",
		"python3", "-c", visitScript, method, url, strconv.FormatBool(local),
	}, keys...)
	text, err := exec.CommandContext(t.Context(), filepath.Join(os.Getenv("DATACACHE_KUBE"), "bin", "kubectl"), arguments...).CombinedOutput()
	if err == nil {
		err = json.Unmarshal(text, &answers)
	}
	if err != nil {
		t.Fatalf("pod %s visits %s: %v: %s", pod.Name, url, err, text)
	}
	return answers
}
