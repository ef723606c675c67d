// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package promtest

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kubeflow/datacache/test/kit/proctest"
)

// interval is how often a Server scrapes, and for how long it waits for an answer.
const interval = "1s"

// patience is how long a Server may take to answer; it is long because the machine may be busy.
const patience = 2 * time.Minute

// Target is what a Server scrapes.
type Target struct {
	URL    string // of the metrics
	Job    string
	Labels map[string]string // those that the operator's PodMonitor gives the pod's series
	Honor  bool              // honor_labels: the series keep labels of the same name
}

// Server is a Prometheus that is running. It is safe for concurrent use.
type Server struct {
	ctx context.Context // of the test
	url string
}

// Start runs Prometheus until the end of the test, and waits until it has scraped all targets. ports are where it may listen.
func Start(t testing.TB, ports *proctest.Ports, targets ...Target) *Server {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatalf("no prometheus: run 'hack/bootstrap prometheus': %v", err)
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(file, config(t, targets), 0o600); err != nil {
		t.Fatal(err)
	}
	address := ports.Free(t)
	s := &Server{ctx: t.Context(), url: "http://" + address}
	p := proctest.Start(t, "prometheus", []string{"HOME=" + dir}, program, "--config.file="+file,
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address, "--log.level=warn")
	proctest.Eventually(t, patience, func() error {
		p.Alive()
		series, err := s.Query("up == 1")
		if err == nil && len(series) != len(targets) {
			err = fmt.Errorf("%d of %d targets are scraped", len(series), len(targets))
		}
		return err
	})
	return s
}

// config returns Prometheus' file of configuration: JSON, which is YAML.
func config(t testing.TB, targets []Target) []byte {
	t.Helper()
	var jobs []map[string]any
	for i, target := range targets {
		at, err := url.Parse(target.URL)
		if err != nil {
			t.Fatal(err)
		}
		labels := map[string]string{"job": target.Job}
		maps.Copy(labels, target.Labels)
		jobs = append(jobs, map[string]any{
			"job_name": fmt.Sprint(i), "scheme": at.Scheme, "metrics_path": at.Path, "honor_labels": target.Honor,
			"static_configs": []any{map[string]any{"targets": []string{at.Host}, "labels": labels}},
		})
	}
	text, err := json.Marshal(map[string]any{
		"global": map[string]any{"scrape_interval": interval, "scrape_timeout": interval}, "scrape_configs": jobs,
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// Series is a series at one moment. Its value is text, as Prometheus sends it: it may be NaN.
type Series struct {
	Labels map[string]string
	Value  string
}

// Query returns the series of an expression, as of now.
func (s *Server) Query(expr string) ([]Series, error) {
	var data struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any
		}
	}
	if err := s.get("query?query="+url.QueryEscape(expr), &data); err != nil {
		return nil, fmt.Errorf("%s: %w", expr, err)
	}
	var series []Series
	for _, r := range data.Result {
		series = append(series, Series{r.Metric, fmt.Sprint(r.Value[1])})
	}
	return series, nil
}

// HasNumbers returns an error unless the expression has at least one series whose value is a number.
func (s *Server) HasNumbers(expr string) error {
	series, err := s.Query(expr)
	for _, one := range series {
		if err == nil && one.Value != "NaN" {
			return nil
		}
	}
	if err == nil {
		err = fmt.Errorf("none of %d series of %s is a number", len(series), expr)
	}
	return err
}

// Metrics returns the names of the metrics that were scraped, sorted. A histogram has one, without _bucket, _sum and _count.
func (s *Server) Metrics() ([]string, error) {
	var families map[string]any
	if err := s.get("metadata", &families); err != nil {
		return nil, err
	}
	return slices.Sorted(maps.Keys(families)), nil
}

func (s *Server) get(path string, data any) error {
	status, text, err := proctest.Request(s.ctx, http.DefaultClient, http.MethodGet, s.url+"/api/v1/"+path)
	if err != nil {
		return err
	}
	answer := struct {
		Error string
		Data  any
	}{Data: data}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		return fmt.Errorf("%w in %s", err, strings.TrimSpace(text))
	}
	if status != http.StatusOK {
		return fmt.Errorf("%d: %s", status, answer.Error)
	}
	return nil
}
