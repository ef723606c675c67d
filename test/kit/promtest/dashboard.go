// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package promtest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// Dashboards are the names of the dashboards of manifests/components/monitoring.
var Dashboards = []string{"cache", "fleet", "object-cache", "scratch-volumes"}

// Query is an expression of a dashboard, as Grafana sends it: without variables.
type Query struct {
	Panel string // its title; for a variable of the dashboard, $ and the variable's name
	Expr  string
}

// window is the time range; a test that is shorter has all of its scrapes in it.
const window = "5m"

var labelValues = regexp.MustCompile(`^label_values\((.+), \w+\)$`)

// Queries returns the expressions of a dashboard: those of its panels, and the series whose labels its variables list. values are those
// of its variables by name. Time ranges are 5 minutes. An expression with another variable fails the test.
func Queries(t testing.TB, repository, name string, values map[string]string) []Query {
	t.Helper()
	file := filepath.Join(repository, "manifests/components/monitoring/dashboards", name+".json")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var dashboard struct {
		Panels []struct {
			Title   string
			Type    string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Name, Type, Query string }
		}
	}
	if err := json.Unmarshal(text, &dashboard); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	pairs := []string{"$__rate_interval", window, "$__range", window}
	for name, value := range values {
		pairs = append(pairs, "$"+name, value)
	}
	set := strings.NewReplacer(pairs...)
	var queries []Query
	add := func(panel, expr string) {
		expr = set.Replace(expr)
		if strings.Contains(expr, "$") {
			t.Fatalf("%s: %s: the expression has a variable without a value: %s", file, panel, expr)
		}
		queries = append(queries, Query{panel, expr})
	}
	for _, v := range dashboard.Templating.List {
		if v.Type != "query" {
			continue
		}
		series := labelValues.FindStringSubmatch(v.Query)
		if series == nil {
			t.Fatalf("%s: the variable %s has the query %q, want label_values(SERIES, LABEL)", file, v.Name, v.Query)
		}
		add("$"+v.Name, series[1])
	}
	for _, p := range dashboard.Panels {
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Fatalf("%s: the panel %s has no expression", file, p.Title)
		}
		for _, target := range p.Targets {
			add(p.Title, target.Expr)
		}
	}
	return queries
}
