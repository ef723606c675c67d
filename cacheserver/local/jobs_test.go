// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package local

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/fair"
	"github.com/kubeflow/datacache/cacheserver/node/serve"
	"github.com/kubeflow/datacache/test/kit/icetest"
)

// open starts a stream of the whole table for a job, or for none if job is empty, and reads its first message: from then on it counts.
// The table is so long that the stream stays open.
func (r *running) open(job string) (flight.FlightService_DoGetClient, error) {
	r.t.Helper()
	command := `{"v":1,"kind":"shard","index":0,"total":1`
	if job != "" {
		command += fmt.Sprintf(`,"job":%q`, job)
	}
	endpoint := r.info(command + "}").Endpoint[0]
	stream, err := r.node(endpoint).DoGet(r.t.Context(), endpoint.Ticket)
	if err != nil {
		r.t.Fatal(err)
	}
	_, err = stream.Recv()
	return stream, err
}

// TestJobs opens streams of jobs up to their limits, and reads what the metrics tell of them.
func TestJobs(t *testing.T) {
	turns := fair.New(serve.Turns())
	turns.Configure(fair.Settings{MaxJobs: 2, MaxStreamsPerJob: 1})
	r := startWith(t, icetest.Local(t).Plain("plain", 2, 1, 100_000, 5000).Metadata(), 1, func(cfg *Config) { cfg.Turns = turns })
	for _, job := range []string{"a", ""} { // the second is 127.0.0.1
		if _, err := r.open(job); err != nil {
			t.Fatal(err)
		}
	}
	for job, says := range map[string][]string{"a": {"maxStreamsPerJob", `"a"`}, "": {"maxStreamsPerJob", `"127.0.0.1"`}, "b": {"maxJobs", `"b"`}} {
		_, err := r.open(job)
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("job %q: %v, want RESOURCE_EXHAUSTED", job, err)
			continue
		}
		for _, text := range says {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%q does not name %s", err, text)
			}
		}
	}
	answer := httptest.NewRecorder()
	r.metrics.Handler().ServeHTTP(answer, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	for _, line := range []string{`datacache_job_bytes_total{job="a"} `, `datacache_job_bytes_total{job="127.0.0.1"} `, `datacache_job_wait_seconds_total{job="a"} `} {
		if !strings.Contains(answer.Body.String(), line) {
			t.Errorf("the metrics have no line that begins with %s", line)
		}
	}
}
