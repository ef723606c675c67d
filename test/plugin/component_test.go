// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/kubeflow/datacache/test/kit/kubetest"
)

const deployment = "kubeflow-trainer-controller-manager"

// get decodes the object with a kind and name.
func get[T any](t *testing.T, objects []*unstructured.Unstructured, kind, name string) *T {
	t.Helper()
	at := slices.IndexFunc(objects, func(o *unstructured.Unstructured) bool { return o.GetKind() == kind && o.GetName() == name })
	if at < 0 {
		t.Fatalf("there is no %s %s", kind, name)
	}
	decoded := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(objects[at].Object, decoded, true); err != nil {
		t.Fatalf("%s %s: %v", kind, name, err)
	}
	return decoded
}

// TestComponent checks that trainer-manager runs in Trainer's own Deployment, which differs from the stock one only in the image and
// the additions here, so it starts with Trainer's own arguments; and that editors of a namespace may edit its DataCaches.
func TestComponent(t *testing.T) {
	t.Parallel()
	stock := get[appsv1.Deployment](t, trainersOwn(t), "Deployment", deployment).Spec.Template
	got := get[appsv1.Deployment](t, platform, "Deployment", deployment).Spec.Template
	if len(stock.Spec.Containers) != 1 || len(got.Spec.Containers) != 1 || len(got.Spec.InitContainers) != 1 {
		t.Fatalf("containers %+v and %+v, stock %+v; want one of each", got.Spec.InitContainers, got.Spec.Containers, stock.Spec.Containers)
	}
	manager, cacheserver := &got.Spec.Containers[0], got.Spec.InitContainers[0]
	if !strings.HasPrefix(manager.Image, "ghcr.io/kubeflow/datacache/trainer-manager:") {
		t.Errorf("the manager's image is %s, want trainer-manager's", manager.Image)
	}
	if !strings.HasPrefix(cacheserver.Image, "ghcr.io/kubeflow/datacache/cacheserver:") {
		t.Errorf("the init container's image is %s, want the one that caches run", cacheserver.Image)
	}
	want := stock.DeepCopy()
	field := func(path string) *corev1.EnvVarSource {
		return &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: path}}
	}
	want.Spec.Containers[0].Env = []corev1.EnvVar{
		{Name: "STATUS_ADDRESS", Value: ":8082"}, // of the component trainer-manager-fluid
		{Name: "POD_NAME", ValueFrom: field("metadata.name")}, {Name: "POD_NAMESPACE", ValueFrom: field("metadata.namespace")},
		{Name: "GANGS", Value: "true"},
	}
	want.Spec.Containers[0].Ports = append([]corev1.ContainerPort{{Name: "status", ContainerPort: 8082}}, want.Spec.Containers[0].Ports...)
	manager.Image, got.Spec.InitContainers = stock.Spec.Containers[0].Image, nil
	if diff := cmp.Diff(*want, got); diff != "" {
		t.Errorf("the pod differs from Trainer's own (-want +got):\n%s", diff)
	}
	if role := get[rbacv1.ClusterRole](t, platform, "ClusterRole", "datacache-edit"); role.Labels["rbac.authorization.k8s.io/aggregate-to-edit"] != "true" {
		t.Errorf("datacache-edit has the labels %v, want it aggregated to edit", role.Labels)
	}
}

// trainersOwn returns the objects of Trainer's stock manifests.
func trainersOwn(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(os.Getenv("DATACACHE_KUBE"), "manifests", "trainer.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	objects, err := split(text)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

// TestComponentFollowsTrainersNamespace checks that our role is bound to the service account of Trainer's manager, and that our Service
// selects its pods, in whichever namespace that is.
func TestComponentFollowsTrainersNamespace(t *testing.T) {
	t.Parallel()
	for _, namespace := range []string{"kubeflow-system", "kubeflow"} { // namespaces of Trainer's overlays manager and kubeflow-platform
		t.Run(namespace, func(t *testing.T) {
			t.Parallel()
			objects, _, err := render(t.TempDir(), os.Getenv("DATACACHE_KUBE"), namespace)
			if err != nil {
				t.Fatal(err)
			}
			bound := get[rbacv1.ClusterRoleBinding](t, objects, "ClusterRoleBinding", "datacache-manager").Subjects
			if len(bound) != 1 || bound[0].Name != deployment || bound[0].Namespace != namespace {
				t.Errorf("the role is bound to %+v, want the service account %s of %s", bound, deployment, namespace)
			}
			status, pods := get[corev1.Service](t, objects, "Service", "datacache-status"), get[appsv1.Deployment](t, objects, "Deployment", deployment).Spec.Template
			if status.Namespace != namespace || !labels.SelectorFromSet(status.Spec.Selector).Matches(labels.Set(pods.Labels)) {
				t.Errorf("the Service of %q selects %v, want it in %s and to select %v", status.Namespace, status.Spec.Selector, namespace, pods.Labels)
			}
		})
	}
}

// TestFlagsAreTrainers checks that trainer-manager accepts every flag of Trainer's own manager, with one dash or two.
func TestFlagsAreTrainers(t *testing.T) {
	t.Parallel()
	stock := filepath.Join(os.Getenv("DATACACHE_KUBE"), "bin", kubetest.Trainer+"-manager")
	usage, err := exec.CommandContext(t.Context(), stock, "-h").CombinedOutput()
	if err != nil {
		t.Fatalf("%s -h: %v\n%s", stock, err, usage)
	}
	flags := regexp.MustCompile(`(?m)^  -([a-z-]+)`).FindAllStringSubmatch(string(usage), -1)
	if len(flags) < 5 {
		t.Fatalf("%s -h names %d flags:\n%s", stock, len(flags), usage)
	}
	for _, flag := range flags {
		for _, dashes := range []string{"-", "--"} {
			// -h after a known flag prints the usage; after an unknown one there is an error.
			out, err := exec.CommandContext(t.Context(), program, dashes+flag[1]+"="+valueOf(flag[1]), "-h").CombinedOutput()
			if err != nil {
				t.Errorf("%s%s: %v\n%s", dashes, flag[1], err, out)
			}
		}
	}
}

// valueOf returns a value that a flag of Trainer's manager accepts.
func valueOf(flag string) string {
	values := map[string]string{
		"zap-devel": "true", "zap-encoder": "json", "zap-log-level": "2", "zap-stacktrace-level": "error", "zap-time-encoding": "iso8601",
	}
	if value, ok := values[flag]; ok {
		return value
	}
	return fmt.Sprintf("a-%s", flag)
}
