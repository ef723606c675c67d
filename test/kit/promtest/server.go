// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package promtest

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

// interval is how often a Server scrapes, and for how long it waits for an answer.
const interval = "1s"

// Pod is a port of a pod, as Prometheus discovers it in a cluster.
type Pod struct {
	URL             string // of the metrics; "": nothing is there, and Prometheus must not scrape this port
	Namespace, Name string
	Port            string // its name
	Labels          map[string]string
}

// Server is a Prometheus that is running. It is safe for concurrent use.
type Server struct {
	ctx context.Context // of the test
	url string
}

// Start runs Prometheus with the scrape_configs of docs/watch.md until the end of the test, and waits until it has scraped all pods with a URL.
// A file tells it of the pods in place of the API server, since Debian's build has no discovery in Kubernetes.
func Start(t testing.TB, repository string, pods ...Pod) *Server {
	t.Helper()
	program, err := exec.LookPath("prometheus")
	if err != nil {
		t.Fatalf("no prometheus: run 'hack/bootstrap prometheus': %v", err)
	}
	dir := t.TempDir()
	file, discovered, token := filepath.Join(dir, "prometheus.yaml"), filepath.Join(dir, "pods.json"), filepath.Join(dir, "token")
	for name, text := range map[string][]byte{file: config(t, repository, discovered, token), discovered: discovery(t, pods), token: []byte("a token")} {
		if err := os.WriteFile(name, text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := 0
	for _, pod := range pods {
		if pod.URL != "" {
			want++
		}
	}
	address := proctest.FreeAddress(t)
	s := &Server{ctx: t.Context(), url: "http://" + address}
	p := proctest.Start(t, "prometheus", []string{"HOME=" + dir}, program, "--config.file="+file,
		"--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+address, "--log.level=warn")
	deadline.Eventually(t, func() error {
		p.Alive()
		series, err := s.Query("up")
		if err != nil {
			return err
		}
		if len(series) != want || slices.ContainsFunc(series, func(one Series) bool { return one.Value != "1" }) {
			return fmt.Errorf("%v are scraped, want %d of %+v", series, want, pods)
		}
		return nil
	})
	return s
}

// config returns Prometheus' file of configuration: JSON, which is YAML.
func config(t testing.TB, repository, discovered, token string) []byte {
	t.Helper()
	page, err := os.ReadFile(filepath.Join(repository, "docs/watch.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, block, found := strings.Cut(string(page), "```yaml\nscrape_configs:\n")
	block, _, closed := strings.Cut(block, "```")
	if !found || !closed {
		t.Fatal("docs/watch.md has no block of scrape_configs")
	}
	var jobs []map[string]any
	if err := yaml.UnmarshalStrict([]byte(block), &jobs); err != nil {
		t.Fatalf("docs/watch.md: %v", err)
	}
	for _, job := range jobs {
		if discovery, err := json.Marshal(job["kubernetes_sd_configs"]); err != nil || string(discovery) != `[{"role":"pod"}]` {
			t.Fatalf("docs/watch.md: %v discovers by %s (%v), want the role pod", job["job_name"], discovery, err)
		}
		delete(job, "kubernetes_sd_configs")
		job["file_sd_configs"] = []any{map[string]any{"files": []string{discovered}}}
		if _, ok := job["authorization"]; ok {
			job["authorization"] = map[string]string{"credentials_file": token}
		}
	}
	text, err := json.Marshal(map[string]any{
		"global": map[string]any{"scrape_interval": interval, "scrape_timeout": interval}, "scrape_configs": jobs,
	})
	if err != nil {
		t.Fatal(err)
	}
	return text
}

var notInLabels = regexp.MustCompile(`[^a-zA-Z0-9_]`)

// discovery returns a file that says of pods what the discovery of Prometheus in Kubernetes, of role pod, does.
func discovery(t testing.TB, pods []Pod) []byte {
	t.Helper()
	type group struct {
		Targets []string          `json:"targets"`
		Labels  map[string]string `json:"labels"`
	}
	groups := []group{}
	for _, pod := range pods {
		at, err := url.Parse(cmp.Or(pod.URL, "http://127.0.0.1:1"))
		if err != nil {
			t.Fatal(err)
		}
		const meta = "__meta_kubernetes_"
		labels := map[string]string{
			"__scheme__": at.Scheme, meta + "namespace": pod.Namespace, meta + "pod_name": pod.Name, meta + "pod_container_port_name": pod.Port,
		}
		for name, value := range pod.Labels {
			labels[meta+"pod_label_"+notInLabels.ReplaceAllString(name, "_")] = value
		}
		groups = append(groups, group{[]string{at.Host}, labels})
	}
	text, err := json.Marshal(groups)
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
