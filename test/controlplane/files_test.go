// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	arrowmemory "github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/cacheserver/source/files"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/parquettest"
)

// folder is the source of a folder of files.
func folder(uri string) *v1alpha1.Source {
	return &v1alpha1.Source{Files: &v1alpha1.FilesSource{URIs: []string{uri}}}
}

// numbersFile is a Parquet file of the rows with ids from 0 on that tables of tests have.
func numbersFile(t *testing.T) []byte {
	numbers := array.NewInt64Builder(arrowmemory.DefaultAllocator)
	for i := range int64(tableRows) {
		numbers.Append(i)
	}
	schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil)
	rec := array.NewRecordBatch(schema, []arrow.Array{numbers.NewArray()}, tableRows)
	return parquettest.Write(t, rec, parquet.NewWriterProperties(), pqarrow.DefaultWriterProps())
}

// TestJobReadsFilesOfNoTable follows a TrainJob with a folder of Parquet files: its DataCache, the variables of the cache's pods, and the
// state with a real head.
func TestJobReadsFilesOfNoTable(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	cluster.Kubelet.Play(ns, func(pod *corev1.Pod) kubetest.Act { return kubetest.Act{Unready: isCachePod(pod)} })
	at := t.TempDir()
	if err := os.WriteFile(filepath.Join(at, "0.parquet"), numbersFile(t), 0o600); err != nil {
		t.Fatal(err)
	}

	cluster.Create(t, cacheJob(ns, "train", "cache+file://"+at+"/?partitions=off", variables("CLUSTER_SIZE", "3")...))
	dc := cluster.DataCache(t, ns, "train", v1alpha1.StatePending)
	want := folder("file://" + at + "/")
	want.Files.Partitions = v1alpha1.PartitionsIgnore
	if diff := cmp.Diff(want, dc.Spec.Arrow.Source); diff != "" || dc.Spec.Arrow.Table != "" {
		t.Errorf("table %q, source (-want +got):\n%s", dc.Spec.Arrow.Table, diff)
	}
	for _, pod := range cachePods(t, ns, 3) {
		env := map[string]string{}
		for _, v := range pod.Spec.Containers[0].Env {
			env[v.Name] = v.Value
		}
		if env["FILES"] != `["file://`+at+`/"]` || env["PARTITIONS"] != "off" || env["TABLE_NAME"] != "" || env["METADATA_LOC"] != "" {
			t.Errorf("pod %s has the environment %v", pod.Name, env)
		}
	}
	store := objstore.New(objstore.Config{})
	_, web := runLocal(t, role.Config{Store: store, Source: &files.Source{Store: store, Location: files.Location{URIs: []string{"file://" + at + "/"}, Plain: true}}})
	awaitPlan(t, web)
	leads(t, web, ns, "train")
	dc = cluster.DataCache(t, ns, "train", v1alpha1.StateReady)
	if dc.Status.Rows == nil || *dc.Status.Rows != tableRows || dc.Status.Snapshot == "" {
		t.Errorf("status %+v", dc.Status)
	}
	dc.Spec.Arrow.Source.Files.URIs[0] = "s3://other/"
	if err := cluster.Client.Update(t.Context(), dc); err == nil || !strings.Contains(err.Error(), "source can't be changed") {
		t.Errorf("other files: %v", err)
	}
}
