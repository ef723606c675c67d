// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/kubeflow/datacache/internal/inject"
)

// overlays are what people install, with the namespace that each is for.
var overlays = map[string]string{
	"without-runtime": systemNamespace,
	"standalone":      systemNamespace,
	"cert-manager":    systemNamespace,
	"kubeflow":        "kubeflow-system",
}

// TestOverlays: the API server, with Trainer's webhooks, takes every object of every overlay. One of them is installed already, so that
// this is the second time for its objects.
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
				if object.GroupVersionKind().Group == "cert-manager.io" { // whose CRDs are not here
					continue
				}
				if in := object.GetNamespace(); in != "" && in != namespace {
					t.Errorf("%s %s is in the namespace %s, want %s", object.GetKind(), object.GetName(), in, namespace)
				}
				applied := object.DeepCopy()
				if isWebhook(object) || object.GetKind() == trainer.ClusterTrainingRuntimeKind {
					// Of these names there are others: webhooks that lead to this process, and Trainer's runtime.
					applied.SetName("overlay-" + object.GetName())
				}
				if err := cluster.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(applied), client.FieldOwner("overlays"), client.ForceOwnership, client.DryRunAll); err != nil {
					t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
				}
			}
			checkOrder(t, objects)
			checkCertificate(t, name == "cert-manager", objects)
		})
	}
}

// render gives the objects of an overlay in the order in which kubectl apply -k sends them.
func render(t *testing.T, overlay string) []*unstructured.Unstructured {
	t.Helper()
	rendered, err := exec.CommandContext(t.Context(), cluster.Kubectl(), "kustomize", filepath.Join("..", "..", "manifests", "overlays", overlay)).Output()
	if err != nil {
		t.Fatalf("render %s: %v", overlay, err)
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

// checkOrder: one kubectl apply is enough, since nothing comes before what it needs: the namespace is the first, and there is no object of
// a kind that the same overlay defines, which the API server may not know yet.
func checkOrder(t *testing.T, objects []*unstructured.Unstructured) {
	t.Helper()
	at := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == "Namespace" })
	if at > 0 {
		t.Errorf("the Namespace comes after %s %s, want it first", objects[0].GetKind(), objects[0].GetName())
	}
	for _, object := range objects {
		if object.GroupVersionKind().Group == inject.Group {
			t.Errorf("%s %s needs the CRD that is applied with it", object.GetKind(), object.GetName())
		}
	}
}

// checkCertificate: the webhook has one source of its certificate, the manager or cert-manager.
func checkCertificate(t *testing.T, certManager bool, objects []*unstructured.Unstructured) {
	t.Helper()
	kinds := map[string]bool{}
	for _, object := range objects {
		if object.GetName() == "datacache-webhook-cert" || object.GetName() == "datacache-webhook" {
			kinds[object.GetKind()] = true
		}
		if _, injected := object.GetAnnotations()["cert-manager.io/inject-ca-from"]; injected != (certManager && isWebhook(object)) {
			t.Errorf("%s %s: cert-manager puts the CA there: %v, want %v", object.GetKind(), object.GetName(), injected, !injected)
		}
	}
	if kinds["Certificate"] != certManager || kinds["Secret"] == certManager {
		t.Errorf("there are a Certificate: %v, a Secret for the manager's own: %v, want one of them", kinds["Certificate"], kinds["Secret"])
	}
}

func isWebhook(object *unstructured.Unstructured) bool {
	kind := object.GetKind()
	return kind == "MutatingWebhookConfiguration" || kind == "ValidatingWebhookConfiguration"
}
