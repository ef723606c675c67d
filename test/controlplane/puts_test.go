// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	arrowmemory "github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	jobset "sigs.k8s.io/jobset/api/jobset/v1alpha2"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/cacheserver/local"
	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

// TestPuts follows a TrainJob that reads a dataset that is put into a cache without a table: its step waits for the dataset, the status of
// the DataCache and the plugin list it, and the training pods know its name.
func TestPuts(t *testing.T) {
	t.Parallel()
	runtimes(t)
	ns := cluster.Namespace(t)
	cluster.Kubelet.Play(ns, func(*corev1.Pod) kubetest.Act { return kubetest.Act{} })
	address, web := takesPuts(t)
	leads(t, web, ns, "fresh")
	dc := &v1alpha1.DataCache{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "fresh"}, Spec: v1alpha1.DataCacheSpec{Arrow: new(putsOnly())}}
	cluster.Create(t, dc)
	for _, pod := range cachePods(t, ns, 3) {
		env := map[string]string{}
		for _, v := range pod.Spec.Containers[0].Env {
			env[v.Name] = v.Value
		}
		if _, table := env["TABLE_NAME"]; table || (env["PUTS"] == "true") != (pod.Labels[wellknown.LabelRole] == wellknown.RoleHead) {
			t.Errorf("pod %s has the environment %v", pod.Name, env)
		}
	}
	cluster.DataCache(t, ns, "fresh", v1alpha1.StateReady)

	job := cacheJob(ns, "train", "datacache://"+ns+"/fresh/words")
	cluster.Create(t, job)
	step := waitingStepAt(t, ns, "train", web)
	kubetest.Eventually(t, "the step to wait for the dataset", func() error {
		return lacks(step.Output.String(), []string{"waiting: for the dataset words, which nobody has put yet; there are: none"})
	})
	knowsItsDataset(t, ns)

	putRows(t, address, "words", 1000)
	if code := step.Exit(); code != 0 {
		t.Errorf("the step ends with %d: %s", code, step.Output)
	}
	kubetest.Eventually(t, "the dataset in the status", func() error {
		if err := cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(dc), dc); err != nil {
			return err
		}
		if d := dc.Status.Datasets; len(d) != 1 || d[0].Name != "words" || d[0].Rows != 1000 || d[0].State != "Ready" || len(d[0].Fingerprint) != 32 {
			return fmt.Errorf("it has %+v", d)
		}
		return nil
	})
	p := pluginFor(t, ns)
	out, err := p.call("datasets fresh")
	if err := errors.Join(err, lacks(out, []string{"NAME", "words", "Ready", "1,000", dc.Status.Datasets[0].Fingerprint})); err != nil {
		t.Error(err, out)
	}
	refusesPuts(t, ns, p)
}

// refusesPuts checks what is said of a cache that takes no datasets.
func refusesPuts(t *testing.T, ns string, p *kubectlPlugin) {
	t.Helper()
	cluster.Create(t, byHand(ns))
	err := cluster.Client.Create(t.Context(), cacheJob(ns, "other", "datacache://"+ns+"/reviews/words"))
	if err == nil {
		t.Error("a dataset of a cache that takes none is not refused")
	} else if err := lacks(err.Error(), []string{"storageUri", "/reviews/words", "takes no datasets from clients", "spec.arrow.puts.enabled"}); err != nil {
		t.Error(err)
	}
	if out, err := p.call("datasets reviews"); err == nil || lacks(out, []string{"takes no datasets from clients: set spec.arrow.puts.enabled"}) != nil {
		t.Errorf("the plugin says %q (%v)", out, err)
	}
}

// knowsItsDataset checks that the training pods of a job have a file with the dataset's name.
func knowsItsDataset(t *testing.T, ns string) {
	t.Helper()
	set := appears(t, &jobset.JobSet{}, ns, "train")
	for _, j := range set.Spec.ReplicatedJobs {
		if j.Name != wellknown.NodeName {
			continue
		}
		pod := j.Template.Spec.Template
		if pod.Annotations[wellknown.AnnotationDataset] != "words" {
			t.Errorf("training pods have the annotations %v", pod.Annotations)
		}
		for _, v := range pod.Spec.Volumes {
			if v.Projected == nil {
				continue
			}
			for _, s := range v.Projected.Sources {
				if s.DownwardAPI != nil && s.DownwardAPI.Items[0].Path == "own/dataset" {
					return
				}
			}
		}
		t.Errorf("no file of training pods has the dataset: %+v", pod.Spec.Volumes)
	}
}

// takesPuts runs a head, with two data nodes, that has no table and takes datasets.
func takesPuts(t *testing.T) (address, web string) {
	t.Helper()
	return runServer(t, func(ctx context.Context, flight, web net.Listener) (proctest.Server, error) {
		cfg := role.Config{
			Store: objstore.New(objstore.Config{}), Source: source.None{}, Flight: flight, HTTP: web, Grace: time.Second,
			Log: slog.New(slog.DiscardHandler), Metrics: ops.NewMetrics(), Budget: offheap.NewBudget(1 << 28),
		}
		return local.New(ctx, local.Config{Config: cfg, Nodes: 2, Puts: true})
	})
}

// putRows puts a dataset of a column of numbers, as any Arrow Flight client can.
func putRows(t *testing.T, address, name string, rows int) {
	t.Helper()
	c, err := flight.NewClientWithMiddleware(address, nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	stream, err := c.DoPut(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil)
	writer := flight.NewRecordWriter(stream, ipc.WithSchema(schema))
	writer.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{name}})
	builder := array.NewRecordBuilder(arrowmemory.DefaultAllocator, schema)
	for i := range rows {
		builder.Field(0).(*array.Int64Builder).Append(int64(i))
	}
	if err := errors.Join(writer.Write(builder.NewRecordBatch()), writer.Close(), stream.CloseSend()); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); err != nil {
		t.Fatal(err)
	}
}
