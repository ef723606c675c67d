// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/yaml"

	"github.com/kubeflow/datacache/internal/wellknown"
)

const chart = repository + "/charts/datacache"

// helm runs stock helm against the test's API server and returns what it prints to standard output.
func helm(t *testing.T, args ...string) ([]byte, error) {
	t.Helper()
	tools := os.Getenv("DATACACHE_FLUID")
	if tools == "" {
		t.Fatal("no helm: run 'make fluid-tools', and the tests by make or with DATACACHE_FLUID=$(make -s print-FLUID)")
	}
	kubeconfig, err := cluster.Kubeconfig("kubetest-admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), filepath.Join(tools, "bin", "ddc-helm"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+kubeconfig, "HELM_CACHE_HOME="+t.TempDir(), "HELM_CONFIG_HOME="+t.TempDir(), "HELM_DATA_HOME="+t.TempDir())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return out, fmt.Errorf("helm %s: %w\n%s", strings.Join(args, " "), err, stderr.String())
	}
	return out, nil
}

func mustHelm(t *testing.T, args ...string) []byte {
	t.Helper()
	out, err := helm(t, args...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// everything turns on all parts of the chart that need no other operator.
var everything = []string{"objectCache.enabled=true", "objectCache.envoy.enabled=true", "scratchVolumes.enabled=true"}

// placed is a patch of a kustomization for which the chart has the values placement.
const placed = `
patches:
- target: {kind: Deployment, name: datacache-manager}
  patch: |-
    - {op: replace, path: /spec/replicas, value: 3}
    - {op: replace, path: /spec/template/spec/containers/0/resources, value: {limits: {memory: 1Gi}}}
    - {op: replace, path: /spec/template/spec/containers/0/env/2/value, value: 900MiB}
    - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: HTTPS_PROXY, value: proxy}}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --object-cache=https://objects}
    - {op: add, path: /spec/template/spec/tolerations/-, value: {key: system, operator: Exists}}
- target: {kind: Deployment}
  patch: |-
    - {op: add, path: /spec/template/spec/imagePullSecrets, value: [{name: own}]}
    - {op: add, path: /spec/template/spec/nodeSelector, value: {pool: system}}
- target: {kind: Deployment, name: datacache-scratch-volumes}
  patch: |-
    - {op: add, path: /spec/template/spec/tolerations/-, value: {key: system, operator: Exists}}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --claim-qps=20}
- target: {kind: DaemonSet}
  patch: |-
    - {op: add, path: /spec/template/spec/imagePullSecrets, value: [{name: own}]}
    - {op: add, path: /spec/template/spec/nodeSelector/pool, value: nvme}
    - {op: add, path: /spec/template/spec/tolerations/-, value: {key: dedicated, operator: Exists}}
- target: {kind: DaemonSet, name: datacache-object-cache}
  patch: |-
    - {op: replace, path: /spec/template/spec/volumes/0/hostPath/path, value: /mnt/nvme}
    - {op: add, path: /spec/template/spec/containers/0/env/-, value: {name: PLAIN_TEXT, value: "false"}}
`

var placement = []string{
	"manager.replicas=3", "manager.resources.requests=null", "manager.resources.limits.memory=1Gi", "manager.goMemLimit=900MiB",
	"manager.env[0].name=HTTPS_PROXY", "manager.env[0].value=proxy", "manager.args={--object-cache=https://objects}", "imagePullSecrets[0].name=own",
	"manager.nodeSelector.pool=system", "manager.tolerations[0].key=system", "manager.tolerations[0].operator=Exists",
	"scratchVolumes.nodeSelector.pool=system", "scratchVolumes.tolerations[0].key=system", "scratchVolumes.tolerations[0].operator=Exists",
	"scratchVolumes.args={--claim-qps=20}",
	"objectCache.nodeSelector.pool=nvme", "objectCache.tolerations[0].key=dedicated", "objectCache.tolerations[0].operator=Exists",
	"objectCache.directory=/mnt/nvme", "objectCache.plainText=false",
}

// TestChartIsTheOverlays checks that the chart renders the objects of the kustomize overlays, field by field.
func TestChartIsTheOverlays(t *testing.T) {
	const base = "resources: [<datacache>/manifests/base]\ncomponents: [<datacache>/manifests/components/namespace, "
	const namespaced = base + `<datacache>/manifests/components/namespaced, <datacache>/manifests/components/fluid]
patches:
- target: {kind: Deployment, name: datacache-manager}
  patch: |-
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: "--namespaces=team-a,team-b"}
`
	const files = base + "<datacache>/manifests/components/runtimes, <datacache>/manifests/components/fluid]\n"
	const gangs = base + "<datacache>/manifests/components/runtimes, <datacache>/manifests/components/gangs, <datacache>/manifests/components/kueue]\n"
	const monitored = base + "<datacache>/manifests/components/runtimes, <datacache>/manifests/components/monitoring]\n"
	digest := "sha256:" + strings.Repeat("ab", 32)
	const whole = "resources: [<datacache>/manifests/base, <datacache>/manifests/object-cache, <datacache>/manifests/scratch-volumes/webhook]\n" +
		"components: [<datacache>/manifests/components/namespace, <datacache>/manifests/components/runtimes, <datacache>/manifests/components/envoy]\n"
	pinned := whole + `
images:
- {name: ghcr.io/kubeflow/datacache/manager, newName: registry.example.com/a/manager, newTag: v9}
- {name: ghcr.io/kubeflow/datacache/cacheserver, newName: registry.example.com/a/cacheserver, digest: "` + digest + `"}
- {name: ghcr.io/kubeflow/datacache/objectcache, newName: registry.example.com/a/objectcache, newTag: v9}
- {name: docker.io/envoyproxy/envoy, newName: registry.example.com/envoy, newTag: v10}
`
	tests := map[string]struct {
		overlay string // folder in manifests/overlays, or
		own     string // a kustomization
		values  []string
		added   []string // objects that the chart has in addition: a kustomization would apply them by themselves
	}{
		"standalone":       {overlay: "standalone"},
		"without-runtime":  {overlay: "without-runtime", values: []string{"runtimes.install=false"}},
		"cert-manager":     {overlay: "cert-manager", values: []string{"certManager.enabled=true"}},
		"kubeflow":         {overlay: "kubeflow"},
		"fluid":            {own: files, values: []string{"fluid.enabled=true"}},
		"gangs and queues": {own: gangs, values: []string{"gangs.enabled=true", "kueue.enabled=true"}},
		"monitoring":       {own: monitored, values: []string{"monitoring.enabled=true"}},
		"namespaced": {
			own: namespaced, values: []string{"namespaces={team-a,team-b}", "runtimes.install=false", "fluid.enabled=true"},
			added: []string{"RoleBinding team-a/datacache-manager", "RoleBinding team-b/datacache-manager"},
		},
		"object cache": {
			own:    strings.NewReplacer("/webhook]", "/admission-policy]", ", <datacache>/manifests/components/envoy", "").Replace(whole),
			values: []string{"objectCache.enabled=true", "scratchVolumes.enabled=true", "scratchVolumes.admission=policy"},
		},
		"envoy": {own: whole, values: everything},
		"other images": {
			own: pinned,
			values: append(everything, "image.registry=registry.example.com/a", "image.tag=v9", "image.digests.cacheserver="+digest,
				"objectCache.envoy.image=registry.example.com/envoy:v10"),
		},
		"placed": {own: whole + placed, values: append(everything, placement...)},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			folder := filepath.Join(repository, "manifests/overlays", tt.overlay)
			if tt.own != "" {
				folder = kustomization(t, tt.own)
			}
			in := namespace
			if name == "kubeflow" {
				in = "kubeflow-system"
			}
			want := objectsOf(t, readFile(t, cluster.Render(t, folder)))
			delete(want, "Namespace "+in) // helm install --create-namespace
			got := objectsOf(t, mustHelm(t, template(in, append(tt.values, "crds.keep=false")...)...))
			for _, added := range tt.added {
				if got[added] == nil {
					t.Errorf("the chart has no %s", added)
				}
				delete(got, added)
			}
			if diff := cmp.Diff(slices.Sorted(maps.Keys(want)), slices.Sorted(maps.Keys(got))); diff != "" {
				t.Fatalf("the objects differ (-kustomize +chart):\n%s", diff)
			}
			for object := range want {
				if diff := cmp.Diff(want[object], got[object]); diff != "" {
					t.Errorf("%s differs (-kustomize +chart):\n%s", object, diff)
				}
			}
		})
	}
}

// template returns the arguments by which helm renders the chart as for a cluster with Trainer.
func template(namespace string, values ...string) []string {
	args := []string{"template", "datacache", chart, "--namespace=" + namespace, "--api-versions=trainer.kubeflow.org/v1alpha1", "--kube-version=v1.36.0"}
	for _, value := range values {
		args = append(args, "--set="+value)
	}
	return args
}

func readFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// hashed is the name of Envoy's ConfigMap, which both ways of installing end with a hash of its content, each with one of its own.
var hashed = regexp.MustCompile(`\bdatacache-envoy-[0-9a-z]{10}\b`)

// objectsOf returns the objects of a manifest by kind, namespace and name.
func objectsOf(t *testing.T, manifest []byte) map[string]map[string]any {
	t.Helper()
	objects := map[string]map[string]any{}
	manifest = hashed.ReplaceAll(manifest, []byte("datacache-envoy"))
	for document := range bytes.SplitSeq(append([]byte("\n"), manifest...), []byte("\n---\n")) {
		var fields map[string]any
		if err := yaml.Unmarshal(document, &fields); err != nil {
			t.Fatalf("%v in\n%s", err, document)
		}
		if fields == nil {
			continue
		}
		o := unstructured.Unstructured{Object: fields}
		if strings.HasPrefix(o.GetKind(), "Cluster") || strings.Contains(o.GetKind(), "AdmissionPolicy") {
			o.SetNamespace("") // kustomize does not know that these kinds have none
		}
		key := o.GetKind() + " " + strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/")
		if objects[key] != nil {
			t.Fatalf("there are two objects %s", key)
		}
		objects[key] = fields
	}
	return objects
}

// TestChart installs the chart over what kustomize installed, upgrades it and uninstalls it. The manager's pods don't run here.
func TestChart(t *testing.T) {
	kubectl(t, "apply", "--server-side", "--force-conflicts", "-k", filepath.Join(repository, overlay))
	all := "--set=" + strings.Join(everything, ",")
	mustHelm(t, "install", "datacache", chart, "--namespace="+namespace, "--create-namespace", "--take-ownership", all)
	runtime := &trainer.ClusterTrainingRuntime{}
	cluster.Appear(t, runtime, "", "torch-distributed-with-cache")
	deployment := &appsv1.Deployment{}
	cluster.Appear(t, deployment, namespace, "datacache-manager")
	if got := *deployment.Spec.Replicas; got != 2 {
		t.Errorf("the Deployment has %d replicas, want 2", got)
	}
	releaseFits(t)

	if _, err := helm(t, "upgrade", "datacache", chart, "--namespace="+namespace, "--set=manager.replica=3"); err == nil || !strings.Contains(err.Error(), "replica") {
		t.Errorf("a value that the chart doesn't have: %v, want it refused by its name", err)
	}
	hook := &admissionv1.MutatingWebhookConfiguration{}
	cluster.Appear(t, hook, "", wellknown.Group)
	ca := readFile(t, filepath.Join(cluster.CertDir, "ca.crt"))
	hook.Webhooks[0].ClientConfig.CABundle = ca
	if err := cluster.Client.Update(t.Context(), hook); err != nil { // as the manager's rotator does
		t.Fatal(err)
	}
	mustHelm(t, "upgrade", "datacache", chart, "--namespace="+namespace, "--set=manager.replicas=3", "--set=runtimes.install=false")
	cluster.Appear(t, deployment, namespace, "datacache-manager")
	if got := *deployment.Spec.Replicas; got != 3 {
		t.Errorf("the upgraded Deployment has %d replicas, want 3", got)
	}
	cluster.Appear(t, hook, "", wellknown.Group)
	if !bytes.Equal(hook.Webhooks[0].ClientConfig.CABundle, ca) {
		t.Error("the upgrade took the webhook's CA away")
	}
	cluster.Vanish(t, runtime, "", "torch-distributed-with-cache")
	cluster.Vanish(t, &appsv1.DaemonSet{}, "datacache-object-cache", "datacache-object-cache")

	kubectl(t, "--namespace="+namespace, "delete", "secret", "--selector=owner=helm,name=datacache") // as in docs/install.md
	kubectl(t, "apply", "--server-side", "--force-conflicts", "-k", filepath.Join(repository, overlay))
	if out, err := helm(t, "status", "datacache", "--namespace="+namespace); err == nil || !strings.Contains(err.Error(), "not found") {
		t.Errorf("helm still knows the release: %v\n%s", err, out)
	}
	uid := deployment.UID
	cluster.Appear(t, deployment, namespace, "datacache-manager")
	if *deployment.Spec.Replicas != 2 || deployment.UID != uid {
		t.Errorf("kustomize left %d replicas in Deployment %s, want 2 in %s", *deployment.Spec.Replicas, deployment.UID, uid)
	}
	mustHelm(t, "install", "datacache", chart, "--namespace="+namespace, "--take-ownership")

	mustHelm(t, "uninstall", "datacache", "--namespace="+namespace)
	cluster.Vanish(t, deployment, namespace, "datacache-manager")
	cluster.Vanish(t, hook, "", wellknown.Group)
	cluster.Appear(t, &apiextensions.CustomResourceDefinition{}, "", "datacaches."+wellknown.Group) // crds.keep
}

// releaseFits checks that helm's own record of the release has room in a Secret, of which the API server stores at most 1 MiB.
func releaseFits(t *testing.T) {
	t.Helper()
	secret := &corev1.Secret{}
	cluster.Appear(t, secret, namespace, "sh.helm.release.v1.datacache.v1")
	if size := len(secret.Data["release"]); size > 500_000 {
		t.Errorf("helm's record of the release has %d bytes, want at most 500,000", size)
	}
}

// TestChartRefuses checks what helm says where the chart can't work, and that helm's own lint finds nothing.
func TestChartRefuses(t *testing.T) {
	mustHelm(t, "lint", "--strict", chart, "--set="+strings.Join(everything, ","))
	withoutTrainer := []string{"template", chart, "--kube-version=v1.36.0"}
	advice := "install Kubeflow Trainer first, or set runtimes.install=false"
	if _, err := helm(t, withoutTrainer...); err == nil || !strings.Contains(err.Error(), advice) {
		t.Errorf("without Trainer's API helm says %v, want how to go on", err)
	}
	mustHelm(t, append(withoutTrainer, "--set=runtimes.install=false")...)
	for value, want := range map[string]string{
		"scratchVolumes.admission=none": "scratchVolumes", "objectCache.directory=objects": "directory",
		"namespaces={Team}": "namespaces", "image.digests.manager=v1": "manager",
	} {
		if _, err := helm(t, template(namespace, value)...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("--set %s: %v, want it refused with %q", value, err, want)
		}
	}
	if _, err := helm(t, "template", chart, "--kube-version=v1.32.0"); err == nil || !strings.Contains(err.Error(), "kubeVersion") {
		t.Errorf("on Kubernetes 1.32 helm says %v, want it refused", err)
	}
}

// TestChartAnnotations compares what Chart.yaml tells Artifact Hub with the chart: its images and its CRD.
func TestChartAnnotations(t *testing.T) {
	var about struct{ Annotations map[string]string }
	if err := yaml.Unmarshal(readFile(t, filepath.Join(chart, "Chart.yaml")), &about); err != nil {
		t.Fatal(err)
	}
	var images []struct{ Image string }
	var crds []struct{ Kind, Version, Name string }
	for name, into := range map[string]any{"images": &images, "crds": &crds} {
		if err := yaml.Unmarshal([]byte(about.Annotations["artifacthub.io/"+name]), into); err != nil {
			t.Fatal(err)
		}
	}
	rendered := mustHelm(t, template(namespace, append(everything, "runtimes.install=false")...)...)
	used, listed := map[string]bool{}, map[string]bool{}
	for _, match := range regexp.MustCompile(`(?m)^ +(?:- )?image: "?([^\s"]+)"?$`).FindAllSubmatch(rendered, -1) {
		used[string(match[1])] = true
	}
	for _, image := range images {
		listed[image.Image] = true
	}
	if diff := cmp.Diff(used, listed); diff != "" {
		t.Errorf("images (-chart +artifacthub.io/images):\n%s", diff)
	}
	var crd apiextensions.CustomResourceDefinition
	if err := yaml.Unmarshal(readFile(t, filepath.Join(chart, "files/crds/datacache.kubeflow.org_datacaches.yaml")), &crd); err != nil {
		t.Fatal(err)
	}
	if len(crds) != 1 || crds[0].Kind != crd.Spec.Names.Kind || crds[0].Name != crd.Name || crds[0].Version != crd.Spec.Versions[0].Name {
		t.Errorf("artifacthub.io/crds is %+v, want %s of %s", crds, crd.Spec.Names.Kind, crd.Name)
	}
}

// TestChartValues checks that every value of the chart is in its schema, and the other way round.
func TestChartValues(t *testing.T) {
	var values map[string]any
	if err := yaml.Unmarshal(readFile(t, filepath.Join(chart, "values.yaml")), &values); err != nil {
		t.Fatal(err)
	}
	var schema map[string]any
	if err := json.Unmarshal(readFile(t, filepath.Join(chart, "values.schema.json")), &schema); err != nil {
		t.Fatal(err)
	}
	properties, _ := schema["properties"].(map[string]any)
	delete(properties, "global") // helm's own
	sameNames(t, "", values, schema)
}

// sameNames compares the names of a value and of its schema, as far down as the schema lists them.
func sameNames(t *testing.T, path string, value any, schema any) {
	t.Helper()
	fields, _ := schema.(map[string]any)
	properties, lists := fields["properties"].(map[string]any)
	object, isObject := value.(map[string]any)
	if !lists || !isObject || path == ".image.digests" { // whose names are optional
		return
	}
	if diff := cmp.Diff(slices.Sorted(maps.Keys(properties)), slices.Sorted(maps.Keys(object))); diff != "" {
		t.Errorf("values%s: names differ (-schema +values.yaml):\n%s", path, diff)
	}
	for name := range object {
		sameNames(t, path+"."+name, object[name], properties[name])
	}
}
