// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// TestUninstall removes datacache with one command while a cache is in use, in random order of the objects, with and without a
// running manager. Nothing may remain, twins included, and it must be possible to delete the user's TrainJob and namespace.
func TestUninstall(t *testing.T) {
	tests := map[string]struct {
		running bool
		remove  func(t *testing.T)
	}{
		"one command": {running: true, remove: func(t *testing.T) {
			t.Helper()
			kubectl(t, "delete", "-k", filepath.Join(repository, overlay), "--ignore-not-found", "--timeout=5m")
		}},
		"one by one":                   {running: true, remove: oneByOne},
		"one by one without a manager": {remove: oneByOne},
		"one command without a manager": {remove: func(t *testing.T) {
			t.Helper()
			kubectl(t, "delete", "-k", filepath.Join(repository, overlay), "--ignore-not-found", "--timeout=5m")
		}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			webhooks := newService(t)
			if err := cluster.Install(t.Context(), rendered(t, repository, overlay), webhooks.listener.Addr().String()); err != nil {
				t.Fatal(err)
			}
			m := start(t, program, namespace)
			webhooks.set(m.webhook)
			made := twin(t)
			if len(made.OwnerReferences) != 1 || made.OwnerReferences[0].Kind != "CustomResourceDefinition" {
				t.Errorf("the twin is owned by %+v, want the CRD of DataCaches", made.OwnerReferences)
			}
			ns := cluster.Namespace(t)
			job := cacheJob(ns, "train")
			cluster.Create(t, job)
			cluster.Appear(t, &lws.LeaderWorkerSet{}, ns, wellknown.CacheName(job.Name))
			collected(t, ns)
			if !tt.running {
				m.terminate(t)
			}
			tt.remove(t)
			nothingIsLeft(t, ns)
			cluster.Delete(t, job)
			cluster.Vanish(t, &trainer.TrainJob{}, ns, job.Name)
		})
	}
}

// collected waits until the garbage collector watches DataCaches: it discovers new kinds every 30 s, and never deletes the dependents
// of an object that it did not see before the object and its kind were deleted. A deletion in the foreground ends only when it has seen
// the object.
func collected(t *testing.T, ns string) {
	t.Helper()
	dc := &v1alpha1.DataCache{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "seen"},
		Spec: v1alpha1.DataCacheSpec{
			Suspend: true,
			Arrow:   &v1alpha1.ArrowCache{MetadataLocation: new("s3://lake/reviews/metadata/00001.metadata.json"), Table: "demo.reviews", DataNodes: 1, Replicas: 1},
		},
	}
	cluster.Create(t, dc)
	if err := cluster.Client.Delete(t.Context(), dc, client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
		t.Fatal(err)
	}
	cluster.Vanish(t, &v1alpha1.DataCache{}, ns, dc.Name)
}

// oneByOne deletes the overlay's objects in a random order, without waiting for each.
func oneByOne(t *testing.T) {
	t.Helper()
	text, err := os.ReadFile(rendered(t, repository, overlay))
	if err != nil {
		t.Fatal(err)
	}
	objects := strings.Split(string(text), "\n---\n")
	seedtest.New(t).Shuffle(len(objects), func(i, j int) { objects[i], objects[j] = objects[j], objects[i] })
	for _, object := range objects {
		file := filepath.Join(t.TempDir(), "object.yaml")
		if err := os.WriteFile(file, []byte(object), 0o600); err != nil {
			t.Fatal(err)
		}
		kubectl(t, "delete", "-f", file, "--ignore-not-found", "--wait=false")
	}
}

func kubectl(t *testing.T, args ...string) {
	t.Helper()
	kubeconfig, err := cluster.Kubeconfig("kubetest-admin", "system:masters")
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), cluster.Kubectl(), append([]string{"--kubeconfig=" + kubeconfig}, args...)...)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("kubectl %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

// nothingIsLeft waits until all objects of datacache are gone: in its own namespace, in the user's, and cluster-scoped ones.
func nothingIsLeft(t *testing.T, user string) {
	t.Helper()
	cluster.Vanish(t, &apiextensions.CustomResourceDefinition{}, "", "datacaches."+wellknown.Group)
	cluster.Vanish(t, &corev1.Namespace{}, "", namespace)
	cluster.Vanish(t, &admissionv1.MutatingWebhookConfiguration{}, "", wellknown.Group)
	cluster.Vanish(t, &admissionv1.ValidatingWebhookConfiguration{}, "", wellknown.Group)
	cluster.Vanish(t, &trainer.ClusterTrainingRuntime{}, "", wellknown.TwinName(stock))
	cluster.Vanish(t, &lws.LeaderWorkerSet{}, user, wellknown.CacheName("train"))
	kubetest.Eventually(t, "the cache's pods to go", func() error {
		var pods corev1.PodList
		if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(user), client.HasLabels{wellknown.LabelCache}); err != nil {
			return err
		}
		if len(pods.Items) > 0 {
			return fmt.Errorf("there still are %d", len(pods.Items))
		}
		return nil
	})
}
