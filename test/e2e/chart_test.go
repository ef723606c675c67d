// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-containerregistry/pkg/registry"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
)

const (
	chartFolder     = "../../charts/datacache"
	managerHome     = "datacache-system"                       // namespace
	clusterManifest = "../../hack/cluster/manifests/datacache" // by which hack/cluster installs datacache
	crdFile         = "files/crds/datacache.kubeflow.org_datacaches.yaml"
	newField        = "addedByTheNextVersion" // of spec, in the second version of the chart
)

// Commands of docs/install.md.
const (
	takeOver = "helm install datacache oci://<your registry>/datacache --version 0.1.0 --namespace datacache-system --values values.yaml " +
		"--take-ownership --wait"
	upgrade = "helm upgrade datacache oci://<your registry>/datacache --version 0.2.0 --namespace datacache-system --values values.yaml " +
		"--atomic"
)

// TestChart does with helm on a real cluster what docs/install.md says: it takes over what kustomize installed, upgrades to a chart whose
// CRD has a new field, tries an image that doesn't exist, rolls back, uninstalls, and goes back to kustomize. The cache of a training job
// that reads all the while must keep its pods.
//
// It is not parallel: no manager runs for a moment, and other tests need one.
func TestChart(t *testing.T) {
	needsCluster(t)
	if cluster.folder == "" {
		t.Skip("it replaces the installation of datacache by others, and knows only how hack/cluster installs it: set DATACACHE_CLUSTER")
	}
	ns := namespace(t)
	server := httptest.NewServer(registry.New(registry.Logger(log.New(io.Discard, "", 0))))
	t.Cleanup(server.Close)
	c := newCharts(t, strings.TrimPrefix(server.URL, "http://"), "{registry: datacache, tag: dev}") // as clusterManifest has it
	t.Cleanup(c.restore)
	c.push("0.1.0", nil)
	c.push("0.2.0", addField)
	before := managerPods(t)

	c.must(c.run(takeOver))
	if diff := cmp.Diff(before, managerPods(t)); diff != "" {
		t.Errorf("manager's pods were replaced although nothing changed but the tool (-before +after):\n%s", diff)
	}
	short := train(t, ns, small(t))
	slow := slowJob(t, "streaming")
	slow.Args = map[string]any{"batch": 10, "pause": 0.4, "ahead": 128 << 10} // 800 s if nobody deletes it; 6 batches ahead
	r := train(t, ns, slow)
	short.ends(t, trainer.TrainJobComplete)
	readOnce(t, short, short.look(t), 1, reviews.Rows)
	goesOn(t, r)
	running := untouchable(t, ns, r.name)
	untouched := func(after string) {
		t.Helper()
		if diff := cmp.Diff(running, untouchable(t, ns, r.name)); diff != "" {
			t.Fatalf("after %s the CRD, the DataCache or its pods are others (-before +after):\n%s", after, diff)
		}
		goesOn(t, r)
	}

	fieldIsServed(t, ns, false)
	c.tag("next")
	c.must(c.run(upgrade, "--set=image.tag=next"))
	fieldIsServed(t, ns, true)
	untouched("the upgrade")

	before = managerPods(t)
	out, err := c.run(upgrade, "--set=image.tag=does-not-exist", "--timeout=30s")
	if err == nil || !strings.Contains(out, "has been rolled back due to atomic being set") {
		t.Errorf("an upgrade to an image that doesn't exist: %v, want it rolled back", err)
	}
	await(t, "the pod without an image to go", func() error {
		if diff := cmp.Diff(before, managerPods(t)); diff != "" {
			return fmt.Errorf("managers (-before +now):\n%s", diff)
		}
		return nil
	})
	if err := webhookAnswers(t, ns); err != nil {
		t.Error(err)
	}
	untouched("the failed upgrade")

	c.must(c.run("helm rollback datacache 1 --namespace datacache-system --wait"))
	fieldIsServed(t, ns, false)
	untouched("the rollback")

	c.must(c.run("helm uninstall datacache --namespace datacache-system --wait"))
	untouched("the removal")
	c.must(c.run("kubectl apply --server-side --force-conflicts -k <your folder>"))
	c.must(c.run("kubectl -n datacache-system rollout status deployment/datacache-manager"))
	await(t, "datacache's webhook to answer", func() error { return webhookAnswers(t, ns) })
	untouched("the installation by kustomize")
}

// charts runs commands of docs/install.md against a registry.
type charts struct {
	t        *testing.T
	ctx      context.Context //nolint:containedctx // that of the test, but it also serves its cleanup
	registry string          // HOST:PORT, or HOST:PORT/PATH, of the chart
	docs     string
	values   string // file
	homes    []string
}

// newCharts returns charts whose values name the images, and otherwise say what clusterManifest does.
func newCharts(t *testing.T, registry, image string) *charts {
	t.Helper()
	docs, err := os.ReadFile("../../docs/install.md")
	if err != nil {
		t.Fatal(err)
	}
	c := &charts{
		t: t, ctx: context.WithoutCancel(t.Context()), registry: registry, docs: string(docs), values: filepath.Join(t.TempDir(), "values.yaml"),
	}
	values := fmt.Sprintf("image: %s\nruntimes: {install: false}\nfluid: {enabled: true}\nmonitoring: {from: [monitoring/pod=prometheus]}\n", image)
	if err := os.WriteFile(c.values, []byte(values), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"CACHE", "CONFIG", "DATA"} {
		c.homes = append(c.homes, fmt.Sprintf("HELM_%s_HOME=%s", name, t.TempDir()))
	}
	return c
}

// run runs a command of docs/install.md, where a backslash may continue a line, with the test's registry, values and folder, and more
// arguments. It returns what the command prints.
func (c *charts) run(line string, more ...string) (string, error) {
	c.t.Helper()
	if !strings.Contains(strings.ReplaceAll(c.docs, " \\\n  ", " "), "\n"+line+"\n") {
		c.t.Fatalf("docs/install.md does not have the command %q", line)
	}
	own := strings.NewReplacer("<your registry>", c.registry, " values.yaml", " "+c.values, "<your folder>", clusterManifest)
	arguments := append(strings.Fields(own.Replace(line)), more...)
	if arguments[0] == "kubectl" {
		return "", kubectl(c.ctx, arguments[1:]...)
	}
	return c.helm(arguments[1:]...)
}

func (c *charts) helm(arguments ...string) (string, error) {
	if strings.Contains(strings.Join(arguments, " "), "oci://") {
		arguments = append(arguments, "--plain-http")
	}
	began := time.Now()
	cmd := exec.CommandContext(c.ctx, filepath.Join(os.Getenv("DATACACHE_FLUID"), "bin", "ddc-helm"), arguments...)
	cmd.Env = append(append(os.Environ(), "KUBECONFIG="+os.Getenv("E2E_KUBECONFIG")), c.homes...)
	out, err := cmd.CombinedOutput()
	c.t.Logf("%.1f s: helm %s", time.Since(began).Seconds(), strings.Join(arguments, " "))
	if err != nil {
		err = fmt.Errorf("helm %s: %w\n%s", strings.Join(arguments, " "), err, out)
	}
	return string(out), err
}

func (c *charts) must(_ string, err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// push packages the chart, changed by edit, and pushes it as an OCI artifact.
func (c *charts) push(version string, edit func(t *testing.T, chart string)) {
	c.t.Helper()
	dir := c.t.TempDir()
	chart := filepath.Join(dir, "datacache")
	if out, err := exec.CommandContext(c.ctx, "cp", "-rL", chartFolder, chart).CombinedOutput(); err != nil {
		c.t.Fatalf("%v\n%s", err, out)
	}
	if edit != nil {
		edit(c.t, chart)
	}
	c.must(c.helm("package", chart, "--version="+version, "--destination="+dir))
	c.must(c.helm("push", filepath.Join(dir, "datacache-"+version+".tgz"), "oci://"+c.registry))
}

// addField adds a field to the CRD of a chart.
func addField(t *testing.T, chart string) {
	t.Helper()
	file := filepath.Join(chart, crdFile)
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var crd map[string]any
	if err := yaml.Unmarshal(text, &crd); err != nil {
		t.Fatal(err)
	}
	versions, _, err := unstructured.NestedSlice(crd, "spec", "versions")
	if err != nil || len(versions) != 1 {
		t.Fatalf("the CRD has %d versions, want 1: %v", len(versions), err)
	}
	version, _ := versions[0].(map[string]any)
	err = errors.Join(
		unstructured.SetNestedField(version, "string", "schema", "openAPIV3Schema", "properties", "spec", "properties", newField, "type"),
		unstructured.SetNestedSlice(crd, versions, "spec", "versions"),
	)
	if err != nil {
		t.Fatal(err)
	}
	if text, err = yaml.Marshal(crd); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}

// fieldIsServed waits until the API server accepts the new field in a DataCache, or refuses it as unknown.
func fieldIsServed(t *testing.T, namespace string, want bool) {
	t.Helper()
	await(t, fmt.Sprintf("spec.%s to be served: %v", newField, want), func() error {
		dc := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{
			newField: "here", "suspend": true,
			"arrow": map[string]any{"table": "demo.reviews", "metadataLocation": "s3://lake/metadata.json", "dataNodes": int64(1)},
		}}}
		dc.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("DataCache"))
		dc.SetNamespace(namespace)
		dc.SetName("with-the-new-field")
		err := cluster.Client.Create(t.Context(), dc, client.DryRunAll, client.FieldValidation("Strict"))
		unknown := err != nil && strings.Contains(err.Error(), fmt.Sprintf("unknown field %q", "spec."+newField))
		if want && err == nil || !want && unknown {
			return nil
		}
		return fmt.Errorf("a DataCache that has it: %v", err) //nolint:errorlint // err may be nil
	})
}

// tag gives the images of datacache another tag on every node.
func (c *charts) tag(tag string) {
	c.t.Helper()
	for _, node := range []string{"n1", "n2"} {
		for _, name := range []string{"manager", "cacheserver"} {
			image := "docker.io/datacache/" + name + ":"
			if out, err := onNode(c.t, node, "ctr", "--namespace", "k8s.io", "images", "tag", "--force", image+"dev", image+tag); err != nil {
				c.t.Fatalf("%v: %s", err, out)
			}
		}
	}
}

// restore installs datacache as hack/cluster does, whatever the test left.
func (c *charts) restore() {
	if _, err := c.helm("uninstall", "datacache", "--namespace="+managerHome, "--ignore-not-found", "--wait"); err != nil {
		c.t.Error(err)
	}
	if err := kubectl(c.ctx, "apply", "--server-side", "--force-conflicts", "-k", clusterManifest); err != nil {
		c.t.Error(err)
	}
	if err := kubectl(c.ctx, "--namespace="+managerHome, "rollout", "status", "deployment/datacache-manager", "--timeout=10m"); err != nil {
		c.t.Error(err)
	}
}

// managerPods returns the manager's pods that are to stay, by name with UID and restarts.
func managerPods(t *testing.T) map[string]string {
	t.Helper()
	return identities(t, client.InNamespace(managerHome), managerLabels)
}

// untouchable returns what no upgrade may replace: the CRD, a TrainJob's DataCache, and the pods of its cache.
func untouchable(t *testing.T, namespace, name string) map[string]string {
	t.Helper()
	found := identities(t, client.InNamespace(namespace), client.MatchingLabels{wellknown.LabelCache: name})
	for _, object := range []client.Object{&apiextensions.CustomResourceDefinition{}, &v1alpha1.DataCache{}} {
		key := client.ObjectKey{Name: "datacaches." + wellknown.Group}
		if _, is := object.(*v1alpha1.DataCache); is {
			key = client.ObjectKey{Namespace: namespace, Name: name}
		}
		if err := cluster.Client.Get(t.Context(), key, object); err != nil {
			t.Fatal(err)
		}
		if object.GetDeletionTimestamp() == nil {
			found[key.String()] = string(object.GetUID())
		}
	}
	return found
}

// identities returns pods that are not being deleted, by name with UID and number of restarts.
func identities(t *testing.T, options ...client.ListOption) map[string]string {
	t.Helper()
	var list corev1.PodList
	if err := cluster.Client.List(t.Context(), &list, options...); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for _, pod := range list.Items {
		if pod.DeletionTimestamp != nil {
			continue
		}
		restarts := int32(0)
		for _, container := range pod.Status.ContainerStatuses {
			restarts += container.RestartCount
		}
		found["pod "+pod.Name] = fmt.Sprintf("%s, %d restarts", pod.UID, restarts)
	}
	return found
}

// goesOn waits until both ranks of a slowJob have made more steps than their buffers held.
func goesOn(t *testing.T, r *run) {
	t.Helper()
	last := 0
	for rank := range 2 {
		lines, err := r.now(t, rank)
		if err != nil {
			continue // it has not begun
		}
		for _, line := range lines {
			if line.Step != nil {
				last = max(last, *line.Step)
			}
		}
	}
	r.passes(t, 2, last+10)
}
