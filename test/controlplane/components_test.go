// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/bits"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// components maps the components that an admin can choose to an object that each adds, or componentNamespaced removes: its kind, or name, or both.
var components = map[string]string{
	"namespace": "Namespace", "runtimes": trainer.ClusterTrainingRuntimeKind, "cert-manager": "Certificate", "monitoring": "ServiceMonitor",
	componentNamespaced: "ClusterRoleBinding datacache-manager", "fluid": "datacache-status",
}

// componentNamespaced is the component that takes the manager's permissions in all namespaces away.
const componentNamespaced = "namespaced"

// TestComponents checks for every set of components, in the base's namespace and in another in turn, that it renders, that the API server
// accepts the objects, and that they are consistent.
func TestComponents(t *testing.T) {
	t.Parallel()
	var accepted sync.Map // objects that were accepted, as text, since many sets share them
	for set := range 1 << len(components) {
		var chosen []string
		for i, name := range slices.Sorted(maps.Keys(components)) {
			if set&(1<<i) != 0 {
				chosen = append(chosen, name)
			}
		}
		namespace := []string{systemNamespace, "kubeflow-system"}[bits.OnesCount(uint(set))%2]
		t.Run(fmt.Sprintf("%s/%s", namespace, strings.Join(chosen, "+")), func(t *testing.T) {
			t.Parallel()
			objects := renderFolder(t, composed(t, namespace, chosen...))
			checkInstallation(t, namespace, objects)
			checkCertificate(t, slices.Contains(chosen, "cert-manager"), namespace, objects)
			for name, sign := range components {
				has := slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool {
					return slices.Contains([]string{o.GetKind(), o.GetName(), o.GetKind() + " " + o.GetName()}, sign)
				})
				if want := slices.Contains(chosen, name) != (name == componentNamespaced); has != want {
					t.Errorf("there is a %s: %v, want %v", sign, has, want)
				}
			}
			for _, object := range objects {
				text, err := json.Marshal(object)
				if err != nil {
					t.Fatal(err)
				}
				if _, known := accepted.LoadOrStore(string(text), true); !known {
					accept(t, object)
				}
			}
		})
	}
}

// composed returns a folder with a kustomization in which an admin chose a namespace and components, as described in docs/install.md.
func composed(t *testing.T, namespace string, chosen ...string) string {
	t.Helper()
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	manifests, err := filepath.Abs(filepath.Join("..", "..", "manifests"))
	if err != nil {
		t.Fatal(err)
	}
	if manifests, err = filepath.Rel(dir, manifests); err != nil {
		t.Fatal(err)
	}
	kustomization := map[string]any{"resources": []string{manifests + "/base"}}
	var paths []string
	for _, name := range chosen {
		paths = append(paths, manifests+"/components/"+name)
	}
	if len(paths) > 0 {
		kustomization["components"] = paths
	}
	if namespace != systemNamespace {
		kustomization["namespace"] = namespace
		if slices.Contains(chosen, "cert-manager") {
			kustomization["transformers"] = []string{manifests + "/components/cert-manager/names"}
		}
	}
	text, err := json.Marshal(kustomization)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "kustomization.yaml"), text, 0o600); err != nil {
		t.Fatal(err)
	}
	return dir
}

// accept has the API server, with Trainer's webhooks, validate an object; kinds without a CRD in this cluster are skipped.
func accept(t *testing.T, object *unstructured.Unstructured) {
	t.Helper()
	if group := object.GroupVersionKind().Group; group == "cert-manager.io" || group == "monitoring.coreos.com" {
		return
	}
	applied := object.DeepCopy()
	if isWebhook(object) || object.GetKind() == trainer.ClusterTrainingRuntimeKind {
		// Objects with these names exist already: webhooks that point to this process, and Trainer's runtime.
		applied.SetName("overlay-" + object.GetName())
	}
	if err := cluster.Client.Apply(t.Context(), client.ApplyConfigurationFromUnstructured(applied), client.FieldOwner("overlays"), client.ForceOwnership, client.DryRunAll); err != nil {
		t.Errorf("%s %s: %v", object.GetKind(), object.GetName(), err)
	}
}

// checkInstallation checks what must hold for every set of objects that an admin may apply.
func checkInstallation(t *testing.T, namespace string, objects []*unstructured.Unstructured) {
	t.Helper()
	for _, object := range objects {
		if in := object.GetNamespace(); in != "" && in != namespace {
			t.Errorf("%s %s is in the namespace %s, want %s", object.GetKind(), object.GetName(), in, namespace)
		}
	}
	checkOrder(t, objects)
	checkImages(t, objects)
	checkRights(t, namespace, "datacache-manager", objects)
	checkManager(t, objects, "datacache-manager", "datacache-webhook", "datacache-metrics")
}

// checkRights checks that bindings give the service account of this namespace's manager its roles, that all of these exist, and that
// no role allows reading Secrets other than by name.
func checkRights(t *testing.T, namespace, manager string, objects []*unstructured.Unstructured) {
	t.Helper()
	for _, object := range objects {
		switch object.GetKind() {
		case "ClusterRole", "Role":
			role := decode[rbacv1.ClusterRole](t, object)
			for _, rule := range role.Rules {
				sees := slices.ContainsFunc(rule.Verbs, func(v string) bool { return v != "create" })
				if slices.Contains(rule.Resources, "secrets") && sees && len(rule.ResourceNames) == 0 {
					t.Errorf("%s %s gives %v on all Secrets", object.GetKind(), role.Name, rule.Verbs)
				}
			}
		case "ClusterRoleBinding", "RoleBinding":
			binding := decode[rbacv1.ClusterRoleBinding](t, object)
			if !slices.ContainsFunc(objects, func(o *unstructured.Unstructured) bool {
				return o.GetKind() == binding.RoleRef.Kind && o.GetName() == binding.RoleRef.Name
			}) {
				t.Errorf("%s %s names %s %s, which is not there", object.GetKind(), binding.Name, binding.RoleRef.Kind, binding.RoleRef.Name)
			}
			for _, subject := range binding.Subjects {
				if subject.Name == manager && subject.Namespace != namespace {
					t.Errorf("%s %s is for the service account of %s, want that of %s", object.GetKind(), binding.Name, subject.Namespace, namespace)
				}
			}
		}
	}
}

// checkManager checks that the objects around a manager's pods match them: Services, the policy, the priority class, memory, and the
// termination grace period.
func checkManager(t *testing.T, objects []*unstructured.Unstructured, name string, services ...string) {
	t.Helper()
	pod := decode[appsv1.Deployment](t, find(t, objects, "Deployment", name)).Spec.Template
	container := pod.Spec.Containers[0]
	ports := map[string]bool{}
	for _, port := range container.Ports {
		ports[port.Name] = true
	}
	for _, service := range services {
		service := decode[corev1.Service](t, find(t, objects, "Service", service))
		if !labels.SelectorFromSet(service.Spec.Selector).Matches(labels.Set(pod.Labels)) || !ports[service.Spec.Ports[0].TargetPort.String()] {
			t.Errorf("Service %s leads to port %s of pods with %v, which the manager's are not", service.Name, &service.Spec.Ports[0].TargetPort, service.Spec.Selector)
		}
	}
	policy := decode[networkingv1.NetworkPolicy](t, find(t, objects, "NetworkPolicy", name))
	if selector, err := metav1.LabelSelectorAsSelector(&policy.Spec.PodSelector); err != nil || !selector.Matches(labels.Set(pod.Labels)) {
		t.Errorf("the NetworkPolicy is for pods with %v (%v), which the manager's are not", policy.Spec.PodSelector, err)
	}
	for _, port := range policy.Spec.Ingress[0].Ports {
		if !ports[port.Port.String()] {
			t.Errorf("the NetworkPolicy names the port %s, which the manager has not", port.Port)
		}
	}
	find(t, objects, "PriorityClass", pod.Spec.PriorityClassName)
	at := slices.IndexFunc(container.Env, func(v corev1.EnvVar) bool { return v.Name == "GOMEMLIMIT" })
	if at < 0 {
		t.Fatalf("the manager's environment is %v, want GOMEMLIMIT in it", container.Env)
	}
	memory := resource.MustParse(strings.TrimSuffix(container.Env[at].Value, "B"))
	if limit := container.Resources.Limits.Memory().Value(); memory.Value() > limit*95/100 || memory.Value() < limit*80/100 {
		t.Errorf("GOMEMLIMIT is %s under a limit of %s, want 80 to 95 %% of it", container.Env[at].Value, container.Resources.Limits.Memory())
	}
	const drain = 30 // seconds that controller-runtime gives running calls
	if stop := container.Lifecycle.PreStop.Sleep.Seconds; stop < 5 || *pod.Spec.TerminationGracePeriodSeconds < stop+drain {
		t.Errorf("the manager sleeps %d s before it ends, and has %d s in all, want 5 s and %d s more", stop, *pod.Spec.TerminationGracePeriodSeconds, drain)
	}
}

func find(t *testing.T, objects []*unstructured.Unstructured, kind, name string) *unstructured.Unstructured {
	t.Helper()
	at := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == kind && o.GetName() == name })
	if at < 0 {
		t.Fatalf("there is no %s %s", kind, name)
	}
	return objects[at]
}

// decode decodes an object to its Go type, and fails on fields that the type lacks.
func decode[T any](t *testing.T, object *unstructured.Unstructured) *T {
	t.Helper()
	decoded := new(T)
	content := runtime.DeepCopyJSON(object.Object)
	if object.GetKind() == "Role" || object.GetKind() == "RoleBinding" {
		delete(content, "kind") // decoded as the Cluster kind, which has the same fields
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(content, decoded, true); err != nil {
		t.Fatalf("%s %s: %v", object.GetKind(), object.GetName(), err)
	}
	return decoded
}
