// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	ice "github.com/apache/iceberg-go"
	trainer "github.com/kubeflow/trainer/v2/pkg/apis/trainer/v1alpha1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/cacheserver/local"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/icetest"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

// variables returns environment variables in the given order, from name, value, name, value, ...
func variables(pairs ...string) []corev1.EnvVar {
	var env []corev1.EnvVar
	for i := 0; i+1 < len(pairs); i += 2 {
		env = append(env, corev1.EnvVar{Name: pairs[i], Value: pairs[i+1]})
	}
	return env
}

// cacheJob returns a TrainJob with a cache on the stock runtime torch-distributed.
func cacheJob(namespace, name, uri string, env ...corev1.EnvVar) *trainer.TrainJob {
	return &trainer.TrainJob{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: trainer.TrainJobSpec{
			RuntimeRef:  trainer.RuntimeRef{Name: "torch-distributed"},
			Trainer:     &trainer.Trainer{NumNodes: new(int32(1))},
			Initializer: &trainer.Initializer{Dataset: &trainer.DatasetInitializer{StorageUri: &uri, Env: env}},
		},
	}
}

// tableEnv returns the variables with which a job names its table. Nothing opens the table: the head is run by the test.
func tableEnv() []corev1.EnvVar {
	return variables("METADATA_LOC", "s3://lake/reviews/metadata/00001.metadata.json", "CLUSTER_SIZE", "3")
}

// runtimes installs the stock runtime and waits for its twin.
func runtimes(t *testing.T) {
	t.Helper()
	if err := cluster.InstallRuntimes(t.Context(), "torch-distributed"); err != nil {
		t.Fatal(err)
	}
	appears(t, &trainer.ClusterTrainingRuntime{}, "", wellknown.TwinName("torch-distributed"))
}

// change edits an object, and retries after conflicts.
func change[T client.Object](t *testing.T, object T, edit func(T)) {
	t.Helper()
	kubetest.Eventually(t, "change "+object.GetName(), func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(object), object); err != nil {
			return err
		}
		edit(object)
		return cluster.Client.Update(t.Context(), object)
	})
}

// appears waits for an object and reads it.
func appears[T client.Object](t *testing.T, object T, namespace, name string) T {
	t.Helper()
	cluster.Appear(t, object, namespace, name)
	return object
}

// awaitEvent waits for an event with the reason on the TrainJob, in the form that the Kubeflow SDK reads, and returns its message.
func awaitEvent(t *testing.T, job *trainer.TrainJob, reason string) string {
	t.Helper()
	message := ""
	kubetest.Eventually(t, fmt.Sprintf("event %s of TrainJob %s", reason, job.Name), func() error {
		var events corev1.EventList
		if err := cluster.Client.List(t.Context(), &events, client.InNamespace(job.Namespace)); err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.InvolvedObject.Kind == "TrainJob" && e.InvolvedObject.Name == job.Name && e.Reason == reason && !e.FirstTimestamp.IsZero() {
				message = e.Message
				return nil
			}
		}
		return fmt.Errorf("there are %d other events", len(events.Items))
	})
	return message
}

// tableRows is the number of rows of the table that served loads.
const tableRows = 1000

// served runs a real head with two data nodes, as the head of the caches, until the end of the test. It returns where clients reach it.
func served(t *testing.T, namespace string, caches ...string) (flight string) {
	t.Helper()
	table := icetest.Local(t).Create("reviews", 2, ice.NewSchema(0, ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64}))
	many := make([]icetest.Row, tableRows)
	for i := range many {
		many[i] = icetest.Row{"id": i}
	}
	table.Append(many...)
	return runHead(t, table.Metadata(), namespace, caches...)
}

// runHead is served for the table at metadata.
func runHead(t *testing.T, metadata, namespace string, caches ...string) (address string) {
	t.Helper()
	store := objstore.New(objstore.Config{})
	flight, web := runLocal(t, role.Config{Store: store, Source: &iceberg.Source{Store: store, Location: iceberg.Location{Metadata: metadata}}})
	awaitPlan(t, web)
	leads(t, web, namespace, caches...)
	return flight
}

// runLocal runs a head with two data nodes in this process, as runServer does. cfg has Store and Source, and may have a Budget.
func runLocal(t *testing.T, cfg role.Config) (flight, web string) {
	t.Helper()
	return runServer(t, func(ctx context.Context, flight, web net.Listener) (proctest.Server, error) {
		cfg.Flight, cfg.HTTP, cfg.Grace = flight, web, time.Second
		cfg.Log, cfg.Metrics = slog.New(slog.DiscardHandler), ops.NewMetrics()
		cfg.Budget = cmp.Or(cfg.Budget, offheap.NewBudget(1<<28))
		return local.New(ctx, local.Config{Config: cfg, Nodes: 2})
	})
}

// runServer runs the server that open makes until the end of the test, and returns its addresses.
func runServer(t *testing.T, open func(ctx context.Context, flight, web net.Listener) (proctest.Server, error)) (flight, web string) {
	t.Helper()
	flightAt, webAt := listen(t), listen(t)
	proctest.RunServer(t, func(ctx context.Context) (proctest.Server, error) { return open(ctx, flightAt, webAt) })
	return flightAt.Addr().String(), webAt.Addr().String()
}

// leads connects the heads of the caches to the server until the end of the test.
func leads(t *testing.T, web, namespace string, caches ...string) {
	t.Helper()
	for _, cache := range caches {
		heads.serve(namespace, cache, web)
		t.Cleanup(func() { heads.serve(namespace, cache, "") })
	}
}

// awaitPlan waits until the head at the address has planned, or failed to. A cache whose TrainJob ends is released at once if its head
// answers that it is still planning.
func awaitPlan(t *testing.T, address string) {
	t.Helper()
	kubetest.Eventually(t, "the head to plan", func() error {
		status, text, err := proctest.Request(t.Context(), http.DefaultClient, http.MethodGet, "http://"+address+"/status")
		if err != nil {
			return err
		}
		if status != http.StatusOK || strings.Contains(text, `"state":"Planning"`) {
			return fmt.Errorf("it answers %d: %s", status, text)
		}
		return nil
	})
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listener
}
