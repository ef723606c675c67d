// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	configapi "github.com/kubeflow/trainer/v2/pkg/apis/config/v1alpha1"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	"github.com/kubeflow/trainer/v2/pkg/runtime"
	"github.com/kubeflow/trainer/v2/pkg/runtime/core"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/kubeflow/datacache/plugin"
)

// trainersRuntimes returns Trainer's runtimes of the kind ClusterTrainingRuntime, as they are and as decorated by the plugin. They
// write nothing: the Trainer of the cluster writes the snapshot of a TrainJob's runtime.
func trainersRuntimes(t *testing.T) (stock, decorated runtime.Runtime) {
	t.Helper()
	mgr, err := ctrl.NewManager(cluster.Config, ctrl.Options{Scheme: cluster.Client.Scheme(), Metrics: metricsserver.Options{BindAddress: "0"}})
	if err != nil {
		t.Fatal(err)
	}
	made, err := core.New(t.Context(), client.NewDryRunClient(cluster.Client), mgr.GetFieldIndexer(), &configapi.Configuration{})
	if err != nil {
		t.Fatal(err)
	}
	both := maps.Clone(made)
	plugin.Decorate(both, plugin.Settings{}, cluster.Client)
	key := runtime.RuntimeRefToRuntimeRegistryKey(trainer.RuntimeRef{
		APIGroup: &trainer.GroupVersion.Group, Kind: new(trainer.ClusterTrainingRuntimeKind),
	})
	if made[key] == nil || made[key] == both[key] {
		t.Fatalf("Trainer's runtimes have no %s, or it isn't decorated: %v", key, slices.Collect(maps.Keys(made)))
	}
	return made[key], both[key]
}

// TestPluginDoesTheSame checks that plugin and webhook have the same effect. It is a single test, since Trainer stores its runtimes
// in a package variable.
func TestPluginDoesTheSame(t *testing.T) {
	t.Parallel()
	runtimes(t)
	stock, decorated := trainersRuntimes(t)
	t.Run("JobSets", func(t *testing.T) { sameJobSets(t, stock, decorated) })
	t.Run("refusals", func(t *testing.T) { sameRefusals(t, decorated) })
}

// sameJobSets checks that the plugin makes of an unmodified TrainJob what stock Trainer makes of it after our webhook.
func sameJobSets(t *testing.T, stock, decorated runtime.Runtime) {
	t.Helper()
	ns := cluster.Namespace(t)
	jobs := map[string]*trainer.TrainJob{
		"own":       cacheJob(ns, "own", table, tableEnv()...),
		"shared":    cacheJob(ns, "shared", table, append(tableEnv(), variables("CACHE_SCOPE", "namespace")...)...),
		"kep":       cacheJob(ns, "kep", "", append(tableEnv(), variables("SCHEMA_NAME", "demo", "TABLE_NAME", "reviews")...)...),
		"with-keys": cacheJob(ns, "with-keys", table, tableEnv()...),
		"uncached":  cacheJob(ns, "uncached", table),
	}
	jobs["with-keys"].Spec.Initializer.Dataset.SecretRef = &corev1.LocalObjectReference{Name: "keys"}
	jobs["uncached"].Spec.Initializer = nil
	for name, theirs := range jobs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			admitted := theirs.DeepCopy()
			if err := cluster.Client.Create(t.Context(), admitted, client.DryRunAll); err != nil { // only to call the webhook
				t.Fatal(err)
			}
			theirs.UID, theirs.Spec.Suspend = admitted.UID, admitted.Spec.Suspend // the API server sets these
			want, got := objectsOf(t, stock, admitted), objectsOf(t, decorated, theirs)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the objects differ (-by the webhook +by the plugin):\n%s", diff)
			}
			if cached := strings.Contains(got, image); cached != (name != "uncached") {
				t.Errorf("the gate's image is in the objects: %v, want %v:\n%s", cached, !cached, got)
			}
		})
	}
}

// objectsOf returns the objects that a runtime makes of a TrainJob, as JSON.
func objectsOf(t *testing.T, of runtime.Runtime, job *trainer.TrainJob) string {
	t.Helper()
	objects, err := of.NewObjects(t.Context(), job)
	if err != nil || len(objects) == 0 {
		t.Fatalf("%d objects are made of TrainJob %s, error %v", len(objects), job.Name, err)
	}
	text, err := json.MarshalIndent(objects, "", " ")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// sameRefusals checks that without our webhook Trainer's own reports the same errors.
func sameRefusals(t *testing.T, decorated runtime.Runtime) {
	t.Helper()
	ns := cluster.Namespace(t)
	for name, job := range map[string]*trainer.TrainJob{
		"size":      cacheJob(ns, "size", table, variables("METADATA_LOC", location, "CLUSTER_SIZE", "2.5")...),
		"name":      cacheJob(ns, "a"+strings.Repeat("b", 33), table, tableEnv()...),
		"reference": cacheJob(ns, "reference", "datacache://nowhere"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, errs := decorated.ValidateObjects(t.Context(), nil, job.DeepCopy())
			if len(errs) != 1 {
				t.Fatalf("the plugin gives %v, want one error", errs)
			}
			refused(t, job, errs[0].Error())
		})
	}
	good := cacheJob(ns, "good", table, tableEnv()...)
	if _, errs := decorated.ValidateObjects(t.Context(), nil, good); len(errs) > 0 {
		t.Errorf("the plugin refuses a good TrainJob: %v", errs)
	}
}
