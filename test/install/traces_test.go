// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"errors"
	"testing"

	lws "sigs.k8s.io/lws/api/leaderworkerset/v1"

	"github.com/kubeflow/datacache/internal/wellknown"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/otlptest"
)

// TestTraces checks what a collector gets from a manager to which a TrainJob with a cache, and one that is refused, are submitted, and
// that the pods of the cache are told to send theirs there.
func TestTraces(t *testing.T) {
	collector := otlptest.Start(t)
	t.Setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.URL)
	t.Setenv("OTEL_EXPORTER_OTLP_HEADERS", "api-key=sesame")
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "10") // ms
	webhooks := newService(t)
	if err := cluster.Install(t.Context(), rendered(t, repository, overlay), webhooks.listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	m := start(t, program, namespace)
	webhooks.set(m.webhook)
	twin(t)
	ns := cluster.Namespace(t)
	cluster.Create(t, cacheJob(ns, "traced"))
	refused := cacheJob(ns, "refused")
	refused.Spec.Initializer.Dataset.Env[1].Value = "none"
	if err := cluster.Client.Create(t.Context(), refused); err == nil {
		t.Error("a TrainJob with an invalid size is admitted")
	}
	set := &lws.LeaderWorkerSet{}
	cluster.Appear(t, set, ns, wellknown.CacheName("traced"))
	env := map[string]string{}
	for _, v := range set.Spec.LeaderWorkerTemplate.WorkerTemplate.Spec.Containers[0].Env {
		env[v.Name] = v.Value
	}
	if _, leaked := env["OTEL_EXPORTER_OTLP_HEADERS"]; leaked || env["OTEL_EXPORTER_OTLP_ENDPOINT"] != collector.URL {
		t.Errorf("variables of data nodes: %v, want the manager's collector without its headers", env)
	}
	kubetest.Eventually(t, "spans of the manager", func() error {
		for _, s := range []struct {
			name, object string
			allowed      any
		}{
			{"mutate TrainJob", "traced", true}, {"validate TrainJob", "traced", true}, {"validate TrainJob", "refused", false},
			{"reconcile TrainJob", "traced", nil}, {"reconcile DataCache", "traced", nil}, {"reconcile ClusterTrainingRuntime", stock, nil},
		} {
			if err := received(collector, s.name, s.object, s.allowed); err != nil {
				return err
			}
		}
		return nil
	})
	m.terminate(t)
}

// received returns an error unless the collector has a span of the manager for an object, with a decision if allowed is not nil.
func received(c *otlptest.Collector, name, object string, allowed any) error {
	for _, s := range c.Spans() {
		of := s.Attributes["datacache.name"]
		if of == nil {
			of = s.Attributes["datacache.trainjob"]
		}
		if s.Name == name && of == object && s.Attributes["datacache.allowed"] == allowed && (s.Error != "") == (allowed == false) && s.Resource["service.name"] == "datacache-manager" {
			return nil
		}
	}
	return errors.New("no span " + name + " of " + object)
}
