// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	ice "github.com/apache/iceberg-go"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/cacheserver/local"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
	"github.com/kubeflow/datacache/controller/workload"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/icetest"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

// TestUpgrade checks that a cache that the previous commit created, and that is in use, survives an upgrade as described in
// docs/install.md: the manifests are applied over the old ones, and the managers are replaced. Its pods must stay, and the new
// manager must manage it and create others. It goes on serving everybody, which is not the new manager's default. UPGRADE_FROM selects
// another commit to upgrade from.
func TestUpgrade(t *testing.T) {
	before := checkout(t, cmp.Or(os.Getenv("UPGRADE_FROM"), "HEAD~1"))
	oldProgram := filepath.Join(t.TempDir(), "manager")
	if err := kubetest.Build(t.Context(), before, "./cmd/manager", oldProgram); err != nil {
		t.Fatal(err)
	}
	webhooks := newService(t)
	at := webhooks.listener.Addr().String()
	if err := cluster.Install(t.Context(), rendered(t, before, overlay), at); err != nil {
		t.Fatal(err)
	}
	old := start(t, oldProgram, namespace, "--readers=Anyone")
	webhooks.set(old.webhook)
	twin(t)
	ns := cluster.Namespace(t)
	address := head(t)
	cluster.Kubelet.Play(ns, func(*corev1.Pod) kubetest.Act { return kubetest.Act{IP: address} })
	cluster.Create(t, cacheJob(ns, "before"))
	isReady(t, ns, "before")
	pods := podsOf(t, ns, "before")
	set := &lws.LeaderWorkerSet{}
	cluster.Appear(t, set, ns, wellknown.CacheName("before"))

	if err := cluster.Install(t.Context(), rendered(t, repository, overlay), at); err != nil {
		t.Fatal(err)
	}
	next := start(t, program, namespace, "--cache-image=example.com/cacheserver:next")
	webhooks.set(next.webhook)
	old.terminate(t)
	cluster.Create(t, cacheJob(ns, "after"))
	isReady(t, ns, "after")
	isReady(t, ns, "before")
	for name, uid := range podsOf(t, ns, "before") {
		if pods[name] != uid {
			t.Errorf("pod %s was made anew by the upgrade", name)
		}
	}
	for name, want := range map[string]v1alpha1.Readers{"before": v1alpha1.ReadersAnyone, "after": v1alpha1.ReadersKnown} {
		config := &corev1.ConfigMap{}
		cluster.Appear(t, config, ns, name+"-cache-access")
		if got := workload.AccessIn(config).Readers; got != want {
			t.Errorf("cache %s serves %s, want %s", name, got, want)
		}
	}
	kept := &lws.LeaderWorkerSet{}
	cluster.Appear(t, kept, ns, wellknown.CacheName("before"))
	if kept.UID != set.UID || kept.Generation != set.Generation {
		t.Errorf("the LeaderWorkerSet went from %s, generation %d, to %s, generation %d", set.UID, set.Generation, kept.UID, kept.Generation)
	}
}

// checkout returns a folder with the files of a commit.
func checkout(t *testing.T, commit string) string {
	t.Helper()
	dir := t.TempDir()
	script := `git -C "$0" archive "$1" | tar --extract --directory "$2"`
	cmd := exec.CommandContext(t.Context(), "bash", "-o", "pipefail", "-c", script, repository, commit, dir)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("the files of commit %s: %v\n%s", commit, err, out)
	}
	return dir
}

// head runs a real head with two data nodes on its own address until the end of the test, and returns the address.
func head(t *testing.T) string {
	t.Helper()
	table := icetest.Local(t).Create("reviews", 2, ice.NewSchema(0, ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64}))
	table.Append(icetest.Row{"id": 1}, icetest.Row{"id": 2})
	const address = "127.200.0.1" // an address that no test cluster uses: the port is fixed
	listen := func(port int) net.Listener {
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", fmt.Sprintf("%s:%d", address, port))
		if err != nil {
			t.Fatal(err)
		}
		return listener
	}
	store := objstore.New(objstore.Config{})
	proctest.RunServer(t, func(ctx context.Context) (proctest.Server, error) {
		return local.New(ctx, local.Config{Nodes: 2, Config: role.Config{
			Flight: listen(0), HTTP: listen(wellknown.HTTPPort), Budget: offheap.NewBudget(1 << 28), Store: store,
			Source: &iceberg.Source{Store: store, Location: iceberg.Location{Metadata: table.Metadata()}}, Grace: time.Second, Log: slog.New(slog.DiscardHandler), Metrics: ops.NewMetrics(),
		}})
	})
	return address
}

// isReady waits for a DataCache's state, in the field that all versions use.
func isReady(t *testing.T, namespace, name string) {
	t.Helper()
	dc := &unstructured.Unstructured{}
	dc.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("DataCache"))
	cluster.Become(t, dc, namespace, name, "Ready", func() error {
		if state, _, _ := unstructured.NestedString(dc.Object, "status", "state"); state != "Ready" {
			return fmt.Errorf("it is %q", state)
		}
		return nil
	})
}

// podsOf returns the UIDs of a cache's pods; there must be three.
func podsOf(t *testing.T, namespace, cache string) map[string]types.UID {
	t.Helper()
	uids := map[string]types.UID{}
	kubetest.Eventually(t, "the pods of cache "+cache, func() error {
		var pods corev1.PodList
		if err := cluster.Client.List(t.Context(), &pods, client.InNamespace(namespace), client.MatchingLabels{wellknown.LabelCache: cache}); err != nil {
			return err
		}
		clear(uids)
		for _, pod := range pods.Items {
			uids[pod.Name] = pod.UID
		}
		if len(uids) != 3 {
			return errors.New("there are not three yet")
		}
		return nil
	})
	return uids
}
