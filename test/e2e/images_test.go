// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"archive/tar"
	"bytes"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/test/kit/ocitest"
)

// puller is who may read the images of the tests; pullSecret is the Secret with its password.
const (
	puller     = "puller:secret"
	pullSecret = "registry"
)

// startRegistry starts a registry of this process and gives the namespace its pull secret. Nodes reach it as localhost:PORT, a name for which
// containerd uses HTTP: it is the node port of a Service.
func startRegistry(t *testing.T, namespace string) *origin {
	t.Helper()
	registry := &origin{Registry: ocitest.StartWithTokensAt(t, ownAddress(t))}
	registry.Wrap(registry.wrap)
	host, text, err := net.SplitHostPort(registry.Host)
	if err != nil {
		t.Fatal(err)
	}
	port, err := net.LookupPort("tcp", text)
	if err != nil {
		t.Fatal(err)
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "registry"},
		Spec:       corev1.ServiceSpec{Type: corev1.ServiceTypeNodePort, Ports: []corev1.ServicePort{{Port: 80}}},
	}
	cluster.Create(t, service)
	cluster.Create(t, &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: namespace, Name: "registry", Labels: map[string]string{discoveryv1.LabelServiceName: service.Name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{host}}},
		Ports:       []discoveryv1.EndpointPort{{Name: new(""), Port: new(int32(port))}}, //nolint:gosec // a port
	})
	registry.Host = fmt.Sprintf("localhost:%d", service.Spec.Ports[0].NodePort)
	user, password, _ := strings.Cut(puller, ":")
	auths, err := json.Marshal(map[string]any{"auths": map[string]any{registry.Host: map[string]string{"username": user, "password": password}}})
	if err != nil {
		t.Fatal(err)
	}
	cluster.Create(t, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pullSecret},
		Type:       corev1.SecretTypeDockerConfigJson, Data: map[string][]byte{corev1.DockerConfigJsonKey: auths},
	})
	return registry
}

// ownAddress is the address at which the cluster's nodes and pods reach this process.
func ownAddress(t *testing.T) string {
	t.Helper()
	node := appears(t, &corev1.Node{}, "", "n1")
	connection, err := (&net.Dialer{}).DialContext(t.Context(), "udp", net.JoinHostPort(node.Status.Addresses[0].Address, "9")) // sends nothing
	if err != nil {
		t.Fatal(err)
	}
	defer connection.Close()
	host, _, err := net.SplitHostPort(connection.LocalAddr().String())
	if err != nil {
		t.Fatal(err)
	}
	return host
}

// pullImages has the nodes' containerd pull a private image through the mirror, with the origin and without, and with a mirror that dies in
// mid-layer.
func pullImages(t *testing.T, objects *objectCache, o *origin, own, other string) {
	t.Helper()
	first := o.push(t, "acme/first")
	for _, node := range []string{"n1", "n2"} {
		hostsFile(t, node, true)
		starts(t, imagePod(own, "first-"+node, node, first))
	}
	var sent, size int64
	for digest, text := range first.Blobs {
		sent, size = sent+o.Sent(digest), size+int64(len(text))
	}
	if sent < size || sent > size*3/2 { // a busy machine may need something twice
		t.Errorf("the registry sent %d bytes for two nodes' pulls of %d", sent, size)
	}
	isRefused(t, imagePod(other, "first", "n1", first))

	o.Stop()
	for _, node := range []string{"n1", "n2"} {
		forget(t, own, "first-"+node, node, first)
		starts(t, imagePod(own, "first-"+node, node, first))
	}
	isRefused(t, imagePod(other, "first-again", "n1", first))
	o.Continue(t)

	o.killMirror(t, objects, own)
}

// killMirror kills the mirror of n1 while containerd reads a layer from it.
func (o *origin) killMirror(t *testing.T, objects *objectCache, namespace string) {
	t.Helper()
	image := o.push(t, "acme/interrupted")
	o.direct()
	release, free := o.hold()
	defer free()
	pod := imagePod(namespace, "interrupted", "n1", image)
	cluster.Create(t, pod)
	await(t, "containerd to be in the middle of a layer", func() error {
		active, err := onNode(t, "n1", "ctr", "--namespace", "k8s.io", "content", "active")
		for line := range strings.Lines(active) {
			if fields := strings.Fields(line); err == nil && len(fields) > 1 && strings.HasPrefix(fields[0], "layer-sha256:") && fields[1] != "0B" {
				return nil
			}
		}
		return fmt.Errorf("it has %q: %w", active, err)
	})
	killContainer(t, objectPodOn(t, "n1"))
	release()
	isRunning(t, pod)
	if ranges := o.direct(); !slices.ContainsFunc(ranges, func(r string) bool { return strings.HasPrefix(r, "bytes=") && r != "bytes=0-" }) {
		t.Errorf("containerd asked the registry for %q, want the rest of a layer", ranges)
	}
	objects.whole(t)
}

// origin is a registry that notes what containerd itself reads there.
type origin struct {
	*ocitest.Registry

	mu      sync.Mutex
	ranges  []string      // Range of each GET of a blob that did not come from a mirror, "" for the whole
	release chan struct{} // closed: mirrors are refused blobs; open: they get only the first block fast; nil: nothing special
}

// direct returns the ranges of blobs that containerd read since the last call.
func (o *origin) direct() []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	ranges := o.ranges
	o.ranges = nil
	return ranges
}

// hold lets mirrors read the first block of blobs alone, until release is called. Then they get nothing, so that none that starts again can
// serve the rest, until free is called.
func (o *origin) hold() (release, free func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	held := make(chan struct{})
	o.release = held
	release = sync.OnceFunc(func() { close(held) })
	return release, func() {
		release()
		o.mu.Lock()
		defer o.mu.Unlock()
		o.release = nil
	}
}

// wrap is an ocitest.Wrap.
func (o *origin) wrap(w http.ResponseWriter, r *http.Request, _ string) http.ResponseWriter {
	o.mu.Lock()
	defer o.mu.Unlock()
	asked := r.Header.Get("Range")
	if r.UserAgent() != "datacache-mirror" {
		o.ranges = append(o.ranges, asked)
		return w
	}
	select {
	case <-o.release: // a nil channel is never ready, so this case is off unless the test sets one
		http.Error(w, "for containerd alone", http.StatusServiceUnavailable)
		return nil
	default:
	}
	if o.release == nil || asked == "" || strings.HasPrefix(asked, "bytes=0-") {
		return w
	}
	return &trickle{ResponseWriter: w, until: o.release}
}

// trickle writes a byte a second until a channel is closed: whoever reads would give up if nothing came.
type trickle struct {
	http.ResponseWriter
	until <-chan struct{}
}

// Write writes all of p.
func (w *trickle) Write(p []byte) (n int, err error) {
	for n < len(p) && err == nil {
		select {
		case <-w.until:
			var rest int
			rest, err = w.ResponseWriter.Write(p[n:])
			n += rest
		case <-time.After(time.Second):
			_, err = w.ResponseWriter.Write(p[n : n+1])
			n++
			_ = http.NewResponseController(w.ResponseWriter).Flush() // without it the byte arrives later
		}
	}
	return n, err
}

// push pushes an image that runs /pause, which the puller can read. Its second layer has several of the mirror's blocks. All of it is unlike
// what other runs of the test left on the nodes.
func (o *origin) push(t *testing.T, repository string) ocitest.Image {
	t.Helper()
	program, err := os.ReadFile(filepath.Join(os.Getenv("DATACACHE_IMAGES"), "parts", "pause")) // hack/images/build
	if err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, 20<<20)
	_, _ = rand.Read(noise) // never fails
	return o.Push(t, repository, []string{layer(t, map[string][]byte{"pause": program, "noise": noise[:1000]}), layer(t, map[string][]byte{"more": noise})}, puller)
}

// layer is a tar file of executable files.
func layer(t *testing.T, files map[string][]byte) string {
	t.Helper()
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for name, content := range files {
		err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o755, Size: int64(len(content))})
		if err == nil {
			_, err = w.Write(content)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

// imagePod is a pod that runs an image on a node. Only in the namespace with the pull secret it has one.
func imagePod(namespace, name, node string, image ocitest.Image) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: corev1.PodSpec{
			NodeSelector:                  map[string]string{corev1.LabelHostname: node},
			TerminationGracePeriodSeconds: new(int64(1)),
			ImagePullSecrets:              []corev1.LocalObjectReference{{Name: pullSecret}},
			Containers:                    []corev1.Container{{Name: "app", Image: image.Name, ImagePullPolicy: corev1.PullAlways, Command: []string{"/pause"}}},
		},
	}
}

// starts creates a pod and waits until it runs.
func starts(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	cluster.Create(t, pod)
	isRunning(t, pod)
}

// isRunning waits until a pod runs.
func isRunning(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	began := time.Now()
	await(t, "pod "+pod.Name+" to run", func() error {
		err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod)
		if err == nil && pod.Status.Phase != corev1.PodRunning {
			err = fmt.Errorf("it is %s: %+v", pod.Status.Phase, pod.Status.ContainerStatuses)
		}
		return err
	})
	t.Logf("%.1f s until pod %s runs", time.Since(began).Seconds(), pod.Name)
}

// isRefused creates a pod and waits until its image could not be pulled, for lack of rights.
func isRefused(t *testing.T, pod *corev1.Pod) {
	t.Helper()
	cluster.Create(t, pod)
	await(t, "pod "+pod.Name+" to be refused its image", func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		if pod.Status.Phase == corev1.PodRunning {
			t.Fatalf("pod %s runs an image that its namespace must not read", pod.Name)
		}
		for _, c := range pod.Status.ContainerStatuses {
			if c.State.Waiting != nil && strings.Contains(c.State.Waiting.Reason, "ImagePull") {
				t.Logf("pod %s: %s", pod.Name, c.State.Waiting.Message)
				return nil
			}
		}
		return fmt.Errorf("it is %+v", pod.Status.ContainerStatuses)
	})
}

// forget deletes a pod, and its image from the node's disk.
func forget(t *testing.T, namespace, name, node string, image ocitest.Image) {
	t.Helper()
	if err := cluster.Client.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}); err != nil {
		t.Fatal(err)
	}
	cluster.Vanish(t, &corev1.Pod{}, namespace, name)
	ctr := func(arguments ...string) (string, error) {
		return onNode(t, node, append([]string{"ctr", "--namespace", "k8s.io"}, arguments...)...)
	}
	repository := strings.TrimSuffix(image.Name, ":v1")
	await(t, "the containers of "+image.Name+" to go", func() error {
		containers, err := ctr("containers", "ls")
		if err == nil && (strings.Contains(containers, repository) || strings.Contains(containers, image.Config)) {
			err = fmt.Errorf("there are %s", containers)
		}
		return err
	})
	if text, err := ctr("images", "rm", "--sync", image.Name, repository+"@"+image.Manifest, image.Config); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	await(t, "the blobs of "+image.Name+" to go", func() error {
		blobs, err := ctr("content", "ls", "--quiet")
		for digest := range image.Blobs {
			if err == nil && strings.Contains(blobs, digest) {
				err = fmt.Errorf("%s is there", digest)
			}
		}
		return err
	})
}

// hostsFile waits until the object cache's file for containerd is on a node, or is not.
func hostsFile(t *testing.T, node string, there bool) {
	t.Helper()
	want := registryHosts + "/_default/" // with the CA, if object caches have one
	if there {
		want += "hosts.toml"
	}
	await(t, fmt.Sprintf("hosts.toml on %s to be there: %v", node, there), func() error {
		files, err := onNode(t, node, "find", registryHosts, "-type", "f")
		if err == nil && strings.Contains(files, want) != there {
			err = fmt.Errorf("there are the files %q", files)
		}
		return err
	})
}

// objectPodOn returns the object cache's pod on a node.
func objectPodOn(t *testing.T, node string) *corev1.Pod {
	t.Helper()
	for _, pod := range pods(t, objectsNamespace, client.MatchingLabels{"app.kubernetes.io/component": "object-cache"}) {
		if pod.Spec.NodeName == node {
			return &pod
		}
	}
	t.Fatalf("no object cache is on %s", node)
	return nil
}

// onNode runs a command inside a node of hack/cluster and returns its output.
func onNode(t *testing.T, node string, command ...string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), clusterScript, append([]string{"node", strings.TrimPrefix(node, "n")}, command...)...).CombinedOutput()
	return string(out), err
}
