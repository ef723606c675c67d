// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"

	ice "github.com/apache/iceberg-go"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/test/kit/icetest"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

// TestTwoCopiesOfATableThatMoves runs real heads with the environment of their pods, over a catalog whose table gets another snapshot before
// the second copy starts: both must serve the snapshot that the first one planned, also a head that starts once more. Another DataCache of
// that table gets the new snapshot.
func TestTwoCopiesOfATableThatMoves(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	table := icetest.Local(t).Create("reviews", 2, ice.NewSchema(0, ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64}))
	table.Append(icetest.Row{"id": 1}, icetest.Row{"id": 2})
	catalog := icetest.ServeCatalog(t, "127.0.0.1", func() icetest.Loaded {
		at := table.Metadata()
		text, err := os.ReadFile(strings.TrimPrefix(at, "file://"))
		if err != nil {
			t.Error(err)
		}
		return icetest.Loaded{Location: at, Metadata: text}
	})
	create := func(name string) {
		dc := named(ns, name)
		dc.Spec.Arrow.MetadataLocation, dc.Spec.Arrow.Table, dc.Spec.Arrow.Replicas = nil, "demo.reviews", 2
		dc.Spec.Arrow.Catalog = &v1alpha1.Catalog{URI: catalog}
		cluster.Create(t, dc)
	}
	create("moving")
	first := appears(t, &corev1.Pod{}, ns, "moving-cache-0")
	if err := cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: ns, Name: "moving-cache-1"}, &corev1.Pod{}); !apierrors.IsNotFound(err) {
		t.Errorf("the second copy starts before the first one has planned: %v", err)
	}
	planned := startHead(t, first)
	if planned.Rows != 2 {
		t.Fatalf("the first head has %d rows, want 2", planned.Rows)
	}
	second := appears(t, &corev1.Pod{}, ns, "moving-cache-1") // once the snapshot is pinned
	table.Append(icetest.Row{"id": 3})
	for _, pod := range []*corev1.Pod{second, first} {
		if got := startHead(t, pod); got != planned {
			t.Errorf("head %s serves %+v of the table that moved, want %+v", pod.Name, got, planned)
		}
	}
	dc := cluster.DataCache(t, ns, "moving", v1alpha1.StateReady)
	if want := fmt.Sprint(planned.Snapshot); dc.Status.Snapshot != want || dc.Status.Rows == nil || *dc.Status.Rows != 2 {
		t.Errorf("its status has snapshot %s and %v rows, want %s and 2", dc.Status.Snapshot, dc.Status.Rows, want)
	}

	create("later")
	if got := startHead(t, appears(t, &corev1.Pod{}, ns, "later-cache-0")); got.Rows != 3 || got.Snapshot == planned.Snapshot {
		t.Errorf("a cache of the table as it is now serves %+v, want 3 rows of another snapshot than %+v", got, planned)
	}
}

// servedTable is what a head says that it serves.
type servedTable struct {
	State    string
	Snapshot int64
	Rows     int
}

// startHead runs a head and a data node, with the environment that the kubelet would give the head's pod now, until the end of the test, waits until
// the rows are loaded, and connects the pod to the head.
func startHead(t *testing.T, pod *corev1.Pod) servedTable {
	t.Helper()
	env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}
	container := pod.Spec.Containers[0]
	for _, from := range container.EnvFrom {
		if from.ConfigMapRef == nil {
			continue
		}
		for name, value := range appears(t, &corev1.ConfigMap{}, pod.Namespace, from.ConfigMapRef.Name).Data {
			env = append(env, name+"="+value)
		}
	}
	for _, v := range container.Env {
		if v.ValueFrom == nil && !strings.HasPrefix(v.Value, "/etc/datacache/access/") { // the files of TestReaders
			env = append(env, v.Name+"="+v.Value)
		}
	}
	flight, web := proctest.FreeAddress(t), proctest.FreeAddress(t)
	proctest.Start(t, "node of "+pod.Name, env[:2], cacheserver, "node", "--head", flight, "--index", "0", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--memory-limit", "256Mi")
	head := proctest.Start(t, pod.Name, env, cacheserver, append(container.Args, "--nodes", "1", "--listen", flight, "--http", web)...)
	var status servedTable
	kubetest.Eventually(t, pod.Name+" to be loaded", func() error {
		head.Alive()
		_, text, err := proctest.Request(t.Context(), http.DefaultClient, http.MethodGet, "http://"+web+"/status")
		if err != nil {
			return err
		}
		if err := json.Unmarshal([]byte(text), &status); err != nil {
			return err
		}
		if status.State != string(v1alpha1.StateReady) {
			return errors.New(text)
		}
		return nil
	})
	heads.lead(client.ObjectKeyFromObject(pod), web)
	return status
}
