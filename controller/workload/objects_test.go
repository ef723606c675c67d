// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"bytes"
	"encoding/json"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/test/kit/cachetest"
	"github.com/kubeflow/datacache/test/kit/goldentest"
)

// TestObjects compares all objects made for a DataCache with testdata: a difference means that clusters would run something else. `go
// test ./controller/workload -update` rewrites it.
func TestObjects(t *testing.T) {
	t.Parallel()
	pinned := cachetest.Minimal()
	pinned.Spec.Arrow.Snapshot = &v1alpha1.Snapshot{Ref: new("main")}
	pinned.Spec.Access.Namespaces = v1alpha1.NamespaceAccess{From: v1alpha1.AccessSelector, Selector: &metav1.LabelSelector{}}
	pinned.Spec.Sharing.Weights = map[string]int32{"train": 3}
	pinned.Status.Snapshot, pinned.Status.CABundle = "77", "a certificate"
	access := Access{
		Readers: v1alpha1.ReadersKnown, Rows: v1alpha1.RowsTLS, Audiences: []string{"of the cache"}, Jobs: map[string]string{"uid": "train-x"},
		Namespaces: []string{"team-a", "team-b"}, Accounts: []string{"team-b/etl"}, Issuers: []Issuer{{URL: "https://issuer", Keys: json.RawMessage(`{"keys": []}`)}},
	}
	for name, dc := range map[string]*v1alpha1.DataCache{"minimal": cachetest.Minimal(), "everything": cachetest.Everything(), "pinned": pinned} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			before := dc.DeepCopy()
			set, err := LeaderWorkerSet(dc, Server{
				Image: "example.com/cacheserver:v1", ObjectCacheURL: "https://objects.example.svc", ObjectCacheCA: "objects-ca", ClusterDomain: "cluster.local",
			})
			if err != nil {
				t.Fatal(err)
			}
			objects := append(Objects(dc, access, []networkingv1.NetworkPolicyPeer{FromNamespaces("datacache-system")}), Secret(dc, "a key", []byte("a certificate\n"), []byte("its key\n")), set)
			goldentest.Compare(t, filepath.Join("testdata", name+".yaml"), render(t, objects))
			if diff := cmp.Diff(before, dc); diff != "" {
				t.Errorf("the DataCache was changed (-before +after):\n%s", diff)
			}
		})
	}
}

// render formats the objects as a stream of YAML documents, each headed by its type.
func render(t *testing.T, objects []client.Object) []byte {
	t.Helper()
	var out bytes.Buffer
	for _, object := range objects {
		text, err := yaml.Marshal(object)
		if err != nil {
			t.Fatal(err)
		}
		out.WriteString(fmt.Sprintf("--- # %T", object) + "\n")
		out.Write(text)
	}
	return out.Bytes()
}

func TestSized(t *testing.T) {
	t.Parallel()
	defaults := corev1.ResourceList{corev1.ResourceCPU: quantity("2"), corev1.ResourceMemory: quantity("2Gi")}
	list := func(cpu, memory string) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceCPU: quantity(cpu), corev1.ResourceMemory: quantity(memory)}
	}
	memoryOnly := corev1.ResourceList{corev1.ResourceMemory: quantity("8Gi")}
	for name, c := range map[string]struct{ given, want corev1.ResourceRequirements }{
		"nothing":             {corev1.ResourceRequirements{}, corev1.ResourceRequirements{Requests: list("2", "2Gi"), Limits: list("2", "2Gi")}},
		"requests alone":      {corev1.ResourceRequirements{Requests: list("3", "4Gi")}, corev1.ResourceRequirements{Requests: list("3", "4Gi"), Limits: list("3", "4Gi")}},
		"a request of little": {corev1.ResourceRequirements{Requests: list("50m", "1Gi")}, corev1.ResourceRequirements{Requests: list("50m", "1Gi"), Limits: list("2", "1Gi")}},
		"limits alone":        {corev1.ResourceRequirements{Limits: list("1", "4Gi")}, corev1.ResourceRequirements{Requests: list("1", "4Gi"), Limits: list("1", "4Gi")}},
		"both":                {corev1.ResourceRequirements{Requests: list("1", "4Gi"), Limits: list("3", "5Gi")}, corev1.ResourceRequirements{Requests: list("1", "4Gi"), Limits: list("3", "5Gi")}},
		"memory alone":        {corev1.ResourceRequirements{Limits: memoryOnly}, corev1.ResourceRequirements{Requests: list("2", "8Gi"), Limits: list("2", "8Gi")}},
		"a request of memory": {corev1.ResourceRequirements{Requests: memoryOnly}, corev1.ResourceRequirements{Requests: list("2", "8Gi"), Limits: list("2", "8Gi")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(c.want, sized(c.given, defaults)); diff != "" {
				t.Errorf("resources differ (-want +got):\n%s", diff)
			}
		})
	}
}

func TestSourceEnv(t *testing.T) {
	t.Parallel()
	source := &v1alpha1.Source{Files: &v1alpha1.FilesSource{URIs: []string{"s3://b/a,b$c/", "s3://b/d"}, Partitions: v1alpha1.PartitionsAuto}}
	dc := &v1alpha1.DataCache{Spec: v1alpha1.DataCacheSpec{Arrow: &v1alpha1.ArrowCache{Source: source}}}
	want := []corev1.EnvVar{{Name: "FILES", Value: `["s3://b/a,b$$c/","s3://b/d"]`}}
	source.Files.PartitionTypes = map[string]v1alpha1.PartitionType{"day": "Date", "code": "String"}
	want = append(want, corev1.EnvVar{Name: "PARTITION_TYPES", Value: `{"code":"string","day":"date"}`})
	got := sourceEnv(dc)
	if diff := cmp.Diff(want, got[:len(got)-1]); diff != "" { // the last is the cache's secret
		t.Errorf("environment differs (-want +got):\n%s", diff)
	}
	dc.Spec.Arrow.Source = &v1alpha1.Source{Delta: &v1alpha1.DeltaSource{URI: "s3://b/t"}}
	want, got = []corev1.EnvVar{{Name: "DELTA", Value: "s3://b/t"}}, sourceEnv(dc)
	if diff := cmp.Diff(want, got[:len(got)-1]); diff != "" {
		t.Errorf("environment differs (-want +got):\n%s", diff)
	}
}

func TestSelectionEnv(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		arrow v1alpha1.ArrowCache
		want  []corev1.EnvVar
	}{
		"everything":       {v1alpha1.ArrowCache{}, nil},
		"by id":            {v1alpha1.ArrowCache{Snapshot: &v1alpha1.Snapshot{ID: new("-3")}}, []corev1.EnvVar{{Name: "SNAPSHOT_ID", Value: "-3"}}},
		"by branch or tag": {v1alpha1.ArrowCache{Snapshot: &v1alpha1.Snapshot{Ref: new("a$b")}}, []corev1.EnvVar{{Name: "SNAPSHOT_REF", Value: "a$$b"}}},
		"by time": {
			v1alpha1.ArrowCache{Snapshot: &v1alpha1.Snapshot{AsOf: new("2026-01-31T00:00:00.5Z")}},
			[]corev1.EnvVar{{Name: "SNAPSHOT_AS_OF", Value: "2026-01-31T00:00:00.5Z"}},
		},
		"some columns":      {v1alpha1.ArrowCache{Columns: []string{"id", "a,b"}}, []corev1.EnvVar{{Name: "TABLE_COLUMNS", Value: `["id","a,b"]`}}},
		"some rows":         {v1alpha1.ArrowCache{Filter: new("id > 7")}, []corev1.EnvVar{{Name: "FILTER", Value: "id > 7"}}},
		"the first epoch":   {v1alpha1.ArrowCache{FirstEpoch: `{"seed":7}`}, []corev1.EnvVar{{Name: "FIRST_EPOCH", Value: `{"seed":7}`}}},
		"trusted manifests": {v1alpha1.ArrowCache{TrustManifests: true}, []corev1.EnvVar{{Name: "TRUST_MANIFESTS", Value: "true"}}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dc := &v1alpha1.DataCache{Spec: v1alpha1.DataCacheSpec{Arrow: &c.arrow}}
			if diff := cmp.Diff(c.want, selectionEnv(dc)); diff != "" {
				t.Errorf("environment differs (-want +got):\n%s", diff)
			}
		})
	}
}

// TestPodsOutliveThePin checks that pods are not recreated when the snapshot is pinned or when settings of the manager change, but
// are when the pod settings in the spec change.
func TestPodsOutliveThePin(t *testing.T) {
	t.Parallel()
	made, err := LeaderWorkerSet(cachetest.Minimal(), Server{Image: "image"})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		edit  func(*v1alpha1.DataCache)
		image string
		anew  bool
	}{
		"pinned":   {func(dc *v1alpha1.DataCache) { dc.Status.Snapshot = "7" }, "image", false},
		"upgraded": {func(*v1alpha1.DataCache) {}, "a newer image", false},
		"scaled":   {func(dc *v1alpha1.DataCache) { dc.Spec.Arrow.Replicas = 3 }, "image", false},
		"shared":   {func(dc *v1alpha1.DataCache) { dc.Spec.Access.Namespaces.From = v1alpha1.AccessSelector }, "image", false},
		"more memory": {func(dc *v1alpha1.DataCache) {
			dc.Spec.Arrow.DataNode.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: quantity("64Gi")}
		}, "image", true},
		"other keys": {func(dc *v1alpha1.DataCache) {
			dc.Spec.Credentials = &v1alpha1.Credentials{SecretRef: corev1.LocalObjectReference{Name: "new"}}
		}, "image", true},
		"another first epoch": {func(dc *v1alpha1.DataCache) { dc.Spec.Arrow.FirstEpoch = `{"seed":8}` }, "image", true},
		"a template": {func(dc *v1alpha1.DataCache) {
			dc.Spec.Arrow.Head.Template = &v1alpha1.PodTemplate{Metadata: v1alpha1.PodMetadata{Labels: map[string]string{"a": "b"}}}
		}, "image", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dc := cachetest.Minimal()
			c.edit(dc)
			want, err := LeaderWorkerSet(dc, Server{Image: c.image})
			if err != nil {
				t.Fatal(err)
			}
			have := made.DeepCopy()
			kube.MergeDesired(have, want)
			if anew := !cmp.Equal(have.Spec.LeaderWorkerTemplate, made.Spec.LeaderWorkerTemplate); anew != c.anew {
				t.Errorf("pods are made anew: %v, want %v", anew, c.anew)
			}
			if anew := have.Annotations[kube.AnnotationPodSettings] != made.Annotations[kube.AnnotationPodSettings]; anew != c.anew {
				t.Errorf("the record of what pods were made by changes: %v, want %v", anew, c.anew)
			}
			if *have.Spec.Replicas != dc.Spec.Arrow.Replicas {
				t.Errorf("%d copies, want %d", *have.Spec.Replicas, dc.Spec.Arrow.Replicas)
			}
		})
	}
}

// TestOneHeadChooses checks that, where two heads could select different snapshots, the second one is started only after the first
// one's snapshot is pinned.
func TestOneHeadChooses(t *testing.T) {
	t.Parallel()
	catalog := func(dc *v1alpha1.DataCache) {
		dc.Spec.Arrow.MetadataLocation, dc.Spec.Arrow.Catalog = nil, &v1alpha1.Catalog{URI: "https://catalog.example.com"}
	}
	for name, c := range map[string]struct {
		edit func(*v1alpha1.DataCache)
		want int32
	}{
		"a metadata file is fixed": {func(*v1alpha1.DataCache) {}, 3},
		"a catalog moves":          {catalog, 1},
		"a catalog's branch": {func(dc *v1alpha1.DataCache) {
			catalog(dc)
			dc.Spec.Arrow.Snapshot = &v1alpha1.Snapshot{Ref: new("main")}
		}, 1},
		"a catalog's snapshot": {func(dc *v1alpha1.DataCache) { catalog(dc); dc.Spec.Arrow.Snapshot = &v1alpha1.Snapshot{ID: new("7")} }, 3},
		"pinned":               {func(dc *v1alpha1.DataCache) { catalog(dc); dc.Status.Snapshot = "7" }, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dc := cachetest.Minimal()
			dc.Spec.Arrow.Replicas = 3
			c.edit(dc)
			if got := copiesToRun(dc); got != c.want {
				t.Errorf("%d copies, want %d", got, c.want)
			}
		})
	}
}

// TestReadinessInQueue: pods that Kueue waits for are ready when they run, unless a Service must tell copies that load from others.
func TestReadinessInQueue(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		queued bool
		copies int32
		want   bool
	}{
		"no queue":          {false, 1, true},
		"a queue":           {true, 1, false},
		"a queue, 2 copies": {true, 2, true},
	} {
		dc := cachetest.Minimal()
		dc.Spec.Arrow.Replicas = tt.copies
		if tt.queued {
			dc.Labels = map[string]string{kube.LabelQueue: "gpus"}
		}
		set, err := LeaderWorkerSet(dc, Server{})
		if err != nil {
			t.Fatal(err)
		}
		for role, pod := range map[string]corev1.PodSpec{"head": set.Spec.LeaderWorkerTemplate.LeaderTemplate.Spec, "node": set.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec} {
			if got := pod.Containers[0].ReadinessProbe != nil; got != tt.want {
				t.Errorf("%s: the %s has a readiness probe: %t, want %t", name, role, got, tt.want)
			}
		}
	}
}
