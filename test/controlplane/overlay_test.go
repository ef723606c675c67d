// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/kubeflow/datacache/internal/wellknown"
)

// overlays maps the overlays that users install to their namespaces.
var overlays = map[string]string{
	"without-runtime": systemNamespace,
	"standalone":      systemNamespace,
	"cert-manager":    systemNamespace,
	"kubeflow":        "kubeflow-system",
}

// TestOverlays checks that the API server, with Trainer's webhooks, accepts every object of every overlay. One of them is installed
// already, so its objects are applied a second time.
func TestOverlays(t *testing.T) {
	t.Parallel()
	all, err := filepath.Glob("../../manifests/overlays/*/kustomization.yaml")
	if err != nil || len(all) != len(overlays) {
		t.Errorf("there are overlays %q (%v), want those that are tested: %v", all, err, overlays)
	}
	for name, namespace := range overlays {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			objects := render(t, name)
			for _, object := range objects {
				accept(t, object)
			}
			checkInstallation(t, namespace, objects)
			checkCertificate(t, name == "cert-manager", namespace, objects)
		})
	}
}

// render returns the objects of an overlay in the order in which kubectl apply -k sends them.
func render(t *testing.T, overlay string) []*unstructured.Unstructured {
	t.Helper()
	return renderFolder(t, filepath.Join("..", "..", "manifests", "overlays", overlay))
}

func renderFolder(t *testing.T, folder string) []*unstructured.Unstructured {
	t.Helper()
	rendered, err := exec.CommandContext(t.Context(), cluster.Kubectl(), "kustomize", folder).Output()
	if err != nil {
		t.Fatalf("render %s: %v", folder, err)
	}
	var objects []*unstructured.Unstructured
	for document := range bytes.SplitSeq(rendered, []byte("\n---\n")) {
		object := &unstructured.Unstructured{}
		if err := yaml.Unmarshal(document, &object.Object); err != nil {
			t.Fatal(err)
		}
		objects = append(objects, object)
	}
	return objects
}

// checkOrder checks that a single kubectl apply is sufficient, since no object precedes what it needs: the namespace comes first, and
// there is no object of a kind that the same overlay defines, which the API server may not know yet.
func checkOrder(t *testing.T, objects []*unstructured.Unstructured) {
	t.Helper()
	at := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "Namespace" })
	if at > 0 {
		t.Errorf("the Namespace comes after %s %s, want it first", objects[0].GetKind(), objects[0].GetName())
	}
	for _, object := range objects {
		if object.GroupVersionKind().Group == wellknown.Group {
			t.Errorf("%s %s needs the CRD that is applied with it", object.GetKind(), object.GetName())
		}
	}
}

// checkCertificate checks that the webhook's certificate comes from exactly one source, the manager or cert-manager, and is for the
// name that the API server calls.
func checkCertificate(t *testing.T, certManager bool, namespace string, objects []*unstructured.Unstructured) {
	t.Helper()
	kinds := map[string]bool{}
	for _, object := range objects {
		if object.GetName() == "datacache-webhook-cert" || object.GetName() == "datacache-webhook" {
			kinds[object.GetKind()] = true
		}
		want := ""
		if certManager && isWebhook(object) {
			want = namespace + "/datacache-webhook"
		}
		if got := object.GetAnnotations()["cert-manager.io/inject-ca-from"]; got != want {
			t.Errorf("%s %s takes its CA from %q, want %q", object.GetKind(), object.GetName(), got, want)
		}
		if object.GetKind() == "Certificate" {
			names, _, _ := unstructured.NestedStringSlice(object.Object, "spec", "dnsNames")
			if name := "datacache-webhook." + namespace + ".svc"; !slices.Contains(names, name) {
				t.Errorf("the certificate is for %q, want %s", names, name)
			}
		}
	}
	if kinds["Certificate"] != certManager || kinds["Secret"] == certManager {
		t.Errorf("there are a Certificate: %v, a Secret for the manager's own: %v, want one of them", kinds["Certificate"], kinds["Secret"])
	}
}

// imageName matches a qualified name with a tag or a digest.
var imageName = regexp.MustCompile(`^[a-z0-9.-]+\.[a-z]+(:[0-9]+)?/[a-z0-9./_-]+(:v?[0-9][A-Za-z0-9._-]*|@sha256:[0-9a-f]{64})$`)

// checkImages checks that every image has a qualified name and a version, and that all of ours have the same version.
func checkImages(t *testing.T, objects []*unstructured.Unstructured) {
	t.Helper()
	versions := map[string]bool{}
	for _, object := range objects {
		for _, image := range imagesIn(object.Object) {
			if !imageName.MatchString(image) {
				t.Errorf("%s %s names the image %s, want registry, name and version", object.GetKind(), object.GetName(), image)
			}
			if name, version, _ := strings.Cut(image, ":"); strings.Contains(name, "/datacache/") {
				versions[version] = true
			}
		}
	}
	if len(versions) != 1 {
		t.Errorf("our images have the versions %v, want one", slices.Collect(maps.Keys(versions)))
	}
}

// imagesIn returns the images of all containers within a value of an object.
func imagesIn(value any) []string {
	var images []string
	switch v := value.(type) {
	case map[string]any:
		for key, inner := range v {
			image, isName := inner.(string)
			if _, container := v["name"]; key == "image" && isName && container {
				images = append(images, image)
			}
			images = append(images, imagesIn(inner)...)
		}
	case []any:
		for _, inner := range v {
			images = append(images, imagesIn(inner)...)
		}
	}
	return images
}

// TestOneSettingMovesAllImages checks that kustomize's images entries, one for each program, apply to every container in the
// manifests, and to the images that the manager sets for caches and the initializer step.
func TestOneSettingMovesAllImages(t *testing.T) {
	t.Parallel()
	at, err := filepath.Abs(filepath.Join("..", "..", "manifests", "overlays", "standalone"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	from, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	overlay, err := filepath.Rel(from, at)
	if err != nil {
		t.Fatal(err)
	}
	const digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
	var text strings.Builder
	fmt.Fprintf(&text, "resources: [%s]\nimages:\n", overlay)
	for _, program := range []string{"manager", "cacheserver"} {
		fmt.Fprintf(&text, "- {name: ghcr.io/kubeflow/datacache/%s, newName: registry.example.com/mirror/%[1]s, digest: %q}\n", program, digest)
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	moved := 0
	for _, object := range renderFolder(t, dir) {
		for _, image := range imagesIn(object.Object) {
			if strings.Contains(image, "/datacache/") {
				t.Errorf("%s %s still names %s", object.GetKind(), object.GetName(), image)
			}
			if strings.HasPrefix(image, "registry.example.com/mirror/") && strings.HasSuffix(image, "@"+digest) {
				moved++
			}
		}
	}
	if moved != 5 { // the manager, its init container, and the step of three runtimes
		t.Errorf("%d images were moved, want 5", moved)
	}
}

// TestNamespacedWebhooks checks that, with the component namespaced, each webhook only applies to the namespaces that are served.
func TestNamespacedWebhooks(t *testing.T) {
	t.Parallel()
	at, err := filepath.Abs(filepath.Join("..", "..", "manifests"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	from, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := filepath.Rel(from, at)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("namespace: datacache-system\nresources: [%s/base]\ncomponents: [%[1]s/components/namespaced]\n", manifests)
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, object := range renderFolder(t, dir) {
		if !isWebhook(object) {
			continue
		}
		webhooks, _, err := unstructured.NestedSlice(object.Object, "webhooks")
		if err != nil {
			t.Fatal(err)
		}
		for _, each := range webhooks {
			webhook, _ := each.(map[string]any)
			served, _, err := unstructured.NestedString(webhook, "namespaceSelector", "matchLabels", "datacache.kubeflow.org/served")
			if err != nil || served != "true" {
				t.Errorf("webhook %v is for namespaces %v (%v), want those that are served", webhook["name"], webhook["namespaceSelector"], err)
			}
			found++
		}
	}
	if found != 5 { // those for creation, updates and validation, and two for TrainJobs that name only a runtime
		t.Errorf("there are %d webhooks, want 5", found)
	}
}

// TestNoServiceOfTrainerSelectsTheManager checks the case where we are installed in Trainer's namespace: Trainer's admission calls
// must not reach us (its Service selects a common label), nor ours reach Trainer.
func TestNoServiceOfTrainerSelectsTheManager(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	var ours, theirs map[string]string
	for _, object := range render(t, "kubeflow") {
		switch {
		case object.GetKind() == "Deployment" && object.GetName() == "datacache-manager":
			labels, _, err := unstructured.NestedStringMap(object.Object, "spec", "template", "metadata", "labels")
			if err != nil {
				t.Fatal(err)
			}
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "manager", Labels: labels},
				Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "manager", Image: image}}},
			}
			if err := cluster.Client.Create(t.Context(), pod); err != nil {
				t.Fatal(err)
			}
		case object.GetKind() == "Service" && object.GetName() == "datacache-webhook":
			ours, _, _ = unstructured.NestedStringMap(object.Object, "spec", "selector")
		}
	}
	const name = "kubeflow-trainer-controller-manager"
	service := &corev1.Service{}
	if err := cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: "kubeflow-system", Name: name}, service); err != nil {
		t.Fatal(err)
	}
	theirs = service.Spec.Selector
	for selector, want := range map[string]int{labels.FormatLabels(ours): 1, labels.FormatLabels(theirs): 0} {
		pods := &corev1.PodList{}
		parsed, err := labels.Parse(selector)
		if err != nil {
			t.Fatal(err)
		}
		if err := cluster.Client.List(t.Context(), pods, client.InNamespace(ns), client.MatchingLabelsSelector{Selector: parsed}); err != nil {
			t.Fatal(err)
		}
		if len(pods.Items) != want {
			t.Errorf("the selector %s finds %d manager pods, want %d", selector, len(pods.Items), want)
		}
	}
}

func isWebhook(object *unstructured.Unstructured) bool {
	kind := object.GetKind()
	return kind == "MutatingWebhookConfiguration" || kind == "ValidatingWebhookConfiguration"
}
