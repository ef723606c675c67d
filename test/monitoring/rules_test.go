// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/kubeflow/datacache/test/kit/promtest"
)

const (
	repository = "../.."
	cases      = "testdata/alerts.yaml"
)

func rules(t *testing.T) promtest.Groups {
	t.Helper()
	return promtest.Read(t, filepath.Join(repository, "manifests/components/monitoring/rules.yaml"))
}

// TestAlerts has promtool evaluate the rules over the series of testdata/alerts.yaml. Of annotations, these have the summary.
func TestAlerts(t *testing.T) {
	promtool := os.Getenv("DATACACHE_PROMTOOL")
	if promtool == "" {
		t.Fatal("no promtool: run 'make tools', and the tests by make or with DATACACHE_PROMTOOL=$(make -s print-PROMTOOL)")
	}
	groups := rules(t)
	for _, group := range groups.Groups {
		for i := range group.Rules {
			group.Rules[i].Annotations = map[string]string{"summary": group.Rules[i].Annotations["summary"]}
		}
	}
	text, err := json.Marshal(groups) // promtool reads YAML, of which JSON is a subset
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	write(t, filepath.Join(dir, "rules.yaml"), text)
	write(t, filepath.Join(dir, "alerts.yaml"), read(t, cases))
	for _, args := range [][]string{{"check", "rules", "--lint-fatal", "rules.yaml"}, {"test", "rules", "alerts.yaml"}} {
		command := exec.CommandContext(t.Context(), promtool, args...)
		command.Dir = dir
		if out, err := command.CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// TestEveryAlert checks that each alert has a case in which it fires, one in which it doesn't, a severity and a paragraph of the docs.
func TestEveryAlert(t *testing.T) {
	var file struct {
		Tests []struct {
			Alerts []struct {
				Alert  string `json:"alertname"`
				Firing []any  `json:"exp_alerts"`
			} `json:"alert_rule_test"`
		} `json:"tests"`
	}
	if err := yaml.Unmarshal(read(t, cases), &file); err != nil {
		t.Fatal(err)
	}
	fires, quiet := map[string]bool{}, map[string]bool{}
	for _, test := range file.Tests {
		for _, c := range test.Alerts {
			fires[c.Alert] = fires[c.Alert] || len(c.Firing) > 0
			quiet[c.Alert] = quiet[c.Alert] || len(c.Firing) == 0
		}
	}
	doc := string(read(t, filepath.Join(repository, "docs/troubleshoot.md")))
	for _, rule := range rules(t).Rules() {
		if !fires[rule.Alert] || !quiet[rule.Alert] {
			t.Errorf("%s has no case in which it fires, or none in which it doesn't, in test/monitoring/%s", rule.Alert, cases)
		}
		if rule.Labels["severity"] == "" {
			t.Errorf("%s has no severity", rule.Alert)
		}
		want := "https://github.com/kubeflow/datacache/blob/main/docs/troubleshoot.md#" + strings.ToLower(rule.Alert)
		if got := rule.Annotations["runbook_url"]; got != want {
			t.Errorf("%s has the runbook_url %s, want %s", rule.Alert, got, want)
		}
		if !strings.Contains(doc, "\n### "+rule.Alert+"\n") {
			t.Errorf("docs/troubleshoot.md has no paragraph %q", "### "+rule.Alert)
		}
	}
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func write(t *testing.T, file string, text []byte) {
	t.Helper()
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
}
