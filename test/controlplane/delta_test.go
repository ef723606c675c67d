// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/cacheserver/source/delta"
	"github.com/kubeflow/datacache/test/kit/kubetest"
)

// deltaTable is the source of a Delta table.
func deltaTable(uri string) *v1alpha1.Source {
	return &v1alpha1.Source{Delta: &v1alpha1.DeltaSource{URI: uri}}
}

// TestJobReadsADeltaTable follows a TrainJob with a Delta table: its DataCache, the variables of the cache's pods, and the state with a real
// head. The version is the first one, 0, which is recorded as any other is.
func TestJobReadsADeltaTable(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	cluster.Kubelet.Play(ns, func(pod *corev1.Pod) kubetest.Act { return kubetest.Act{Unready: isCachePod(pod)} })
	at := t.TempDir()
	file := numbersFile(t)
	commit := fmt.Sprintf(`{"protocol":{"minReaderVersion":1,"minWriterVersion":2}}
{"metaData":{"id":"t","schemaString":"{\"type\":\"struct\",\"fields\":[{\"name\":\"id\",\"type\":\"long\",\"nullable\":true,\"metadata\":{}}]}","partitionColumns":[]}}
{"add":{"path":"0.parquet","size":%d,"modificationTime":1,"partitionValues":{}}}
`, len(file))
	if err := os.Mkdir(filepath.Join(at, "_delta_log"), 0o750); err != nil {
		t.Fatal(err)
	}
	for name, data := range map[string][]byte{"0.parquet": file, "_delta_log/00000000000000000000.json": []byte(commit)} {
		if err := os.WriteFile(filepath.Join(at, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	cluster.Create(t, cacheJob(ns, "train", "cache+delta+file://"+at+"?version=0", variables("CLUSTER_SIZE", "3")...))
	dc := cluster.DataCache(t, ns, "train", v1alpha1.StatePending)
	if diff := cmp.Diff(deltaTable("file://"+at), dc.Spec.Arrow.Source); diff != "" || dc.Spec.Arrow.Table != "" {
		t.Errorf("table %q, source (-want +got):\n%s", dc.Spec.Arrow.Table, diff)
	}
	for _, pod := range cachePods(t, ns, 3) {
		env := map[string]string{}
		for _, v := range pod.Spec.Containers[0].Env {
			env[v.Name] = v.Value
		}
		if env["DELTA"] != "file://"+at || env["FILES"] != "" || env["TABLE_NAME"] != "" {
			t.Errorf("pod %s has the environment %v", pod.Name, env)
		}
	}
	store := objstore.New(objstore.Config{})
	_, web := runLocal(t, role.Config{Store: store, Source: &delta.Source{Store: store, URI: "file://" + at}})
	awaitPlan(t, web)
	leads(t, web, ns, "train")
	dc = cluster.DataCache(t, ns, "train", v1alpha1.StateReady)
	if dc.Status.Rows == nil || *dc.Status.Rows != tableRows || dc.Status.Snapshot != "0" {
		t.Errorf("status %+v", dc.Status)
	}
}
