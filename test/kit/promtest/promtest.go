// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package promtest reads alert rules, and metrics in Prometheus' text format, for tests.
package promtest

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// Rule is an alert.
type Rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// Group is a group of alerts.
type Group struct {
	Name  string `json:"name"`
	Rules []Rule `json:"rules"`
}

// Groups is the spec of a PrometheusRule, and the form of a file of rules.
type Groups struct {
	Groups []Group `json:"groups"`
}

// Read returns the spec of the PrometheusRule in a file. Fields that a Rule doesn't have fail the test.
func Read(t testing.TB, file string) Groups {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var object struct {
		Spec       Groups         `json:"spec"`
		APIVersion string         `json:"apiVersion"`
		Kind       string         `json:"kind"`
		Metadata   map[string]any `json:"metadata"`
	}
	if err := yaml.UnmarshalStrict(text, &object); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	return object.Spec
}

// Rules returns the alerts of all groups.
func (g Groups) Rules() []Rule {
	var rules []Rule
	for _, group := range g.Groups {
		rules = append(rules, group.Rules...)
	}
	return rules
}

var (
	notMetrics = regexp.MustCompile(`\{[^}]*\}|\[[^\]]*\]|\b(by|on|without|ignoring|group_left|group_right)\s*\([^)]*\)`)
	identifier = regexp.MustCompile(`\b[a-zA-Z_:][a-zA-Z0-9_:]*\s*\(?`)
	operators  = []string{"and", "or", "unless", "bool", "offset"}
)

// Metrics returns the names of the metrics in an expression of PromQL, sorted. It knows no literal strings outside of selectors.
func Metrics(expr string) []string {
	var names []string
	for _, name := range identifier.FindAllString(notMetrics.ReplaceAllString(expr, " "), -1) {
		name = strings.TrimSpace(name)
		if !strings.HasSuffix(name, "(") && !slices.Contains(operators, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// OfManager reports whether a metric is one that only managers export.
func OfManager(name string) bool {
	for _, prefix := range []string{
		"controller_runtime_", "workqueue_", "datacache_cache_", "datacache_caches", "datacache_provision_seconds",
	} {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return strings.HasPrefix(name, "datacache_load_seconds") && name != "datacache_load_seconds_total"
}

// OfScratchVolumes reports whether a metric is one that only managers of scratch volumes export.
func OfScratchVolumes(name string) bool { return strings.HasPrefix(name, "datacache_claim") }

// Names returns the names of the series in Prometheus' text format.
func Names(text string) map[string]bool {
	names := map[string]bool{}
	for line := range strings.Lines(text) {
		if end := strings.IndexAny(line, "{ "); end > 0 && line[0] != '#' {
			names[line[:end]] = true
		}
	}
	return names
}

// ours matches names of metrics in docs and in Prometheus.
var ours = regexp.MustCompile(`\bdatacache_[a-z_]*[a-z]\b`)

// Documented checks that the pages of docs name every metric of ours among those that were exported, and of those that a filter chooses
// no others.
func Documented(t testing.TB, repository string, exported []string, chosen func(name string) bool) {
	t.Helper()
	pages, err := filepath.Glob(filepath.Join(repository, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]string{} // page by metric
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range ours.FindAllString(string(text), -1) {
			named[name] = filepath.Base(page)
		}
	}
	for _, name := range exported {
		if ours.MatchString(name) && named[name] == "" {
			t.Errorf("no page of docs names the metric %s", name)
		}
	}
	for name, page := range named {
		if chosen(name) && !slices.Contains(exported, name) {
			t.Errorf("docs/%s names the metric %s, which no server exports", page, name)
		}
	}
}
