// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
)

func TestVisible(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"plain, tab\tand\nnewline ä 漢 🙂":   "plain, tab\tand\nnewline ä 漢 🙂",
		"\x1b[2J\x1b]52;c;cm0=\a":          `\x1b[2J\x1b]52;c;cm0=\x07`,
		"\r\b\x00\x7f":                     `\x0d\x08\x00\x7f`,
		"\u009b31m \u202eevil\u2066":       `\u009b31m \u202eevil\u2066`,
		"not UTF-8: \x9b31m \xc3( \xff.":   `not UTF-8: \x9b31m \xc3( \xff.`,
		"\ufffd stays, and so does \u00a0": "\ufffd stays, and so does \u00a0",
	} {
		var whole, bytewise bytes.Buffer
		fmt.Fprint(&visible{out: &whole}, text)
		one := &visible{out: &bytewise}
		for i := range len(text) {
			fmt.Fprint(one, text[i:i+1])
		}
		if got := bytewise.String(); whole.String() != want || got != want {
			t.Errorf("%q is shown as %q and byte by byte as %q, want %q", text, whole.String(), got, want)
		}
	}
}

// hostile is a cluster's API with one cache, every text of which has characters that terminals obey.
func hostile(t *testing.T) (kubeconfig string) {
	t.Helper()
	const evil = "\x1b]0;owned\a\x1b[2J\u009b31m"
	cache := map[string]any{
		"apiVersion": "datacache.kubeflow.org/v1alpha1", "kind": "DataCache", "metadata": map[string]any{"name": evil, "namespace": evil},
		"spec": map[string]any{"arrow": map[string]any{"table": evil, "columns": []string{evil}, "filter": evil + "\nstate       Ready"}},
		"status": map[string]any{
			"state": evil, "endpoint": evil, "usedBy": []string{evil},
			"conditions": []any{map[string]any{"type": "Ready", "status": "False", "reason": evil, "message": evil}},
		},
	}
	const version = "/apis/datacache.kubeflow.org/v1alpha1"
	resource := map[string]any{"name": "datacaches", "kind": "DataCache", "namespaced": true, "verbs": []string{"get", "list"}}
	answers := map[string]any{
		"/api":  map[string]any{"kind": "APIVersions", "versions": []string{"v1"}},
		"/apis": map[string]any{"kind": "APIGroupList", "groups": []any{group("datacache.kubeflow.org", "v1alpha1")}},
		version: map[string]any{"kind": "APIResourceList", "groupVersion": "datacache.kubeflow.org/v1alpha1", "resources": []any{resource}},
		version + "/namespaces/default/datacaches":      map[string]any{"kind": "DataCacheList", "apiVersion": "datacache.kubeflow.org/v1alpha1", "items": []any{cache}},
		version + "/namespaces/default/datacaches/evil": cache,
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		answer, ok := answers[r.URL.Path]
		if !ok {
			w.WriteHeader(http.StatusForbidden)
			answer = map[string]any{"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Forbidden", "code": 403, "message": "no " + evil}
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	t.Cleanup(server.Close)
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c","cluster":{"server":%q}}],`+
		`"users":[{"name":"u","user":{}}],"contexts":[{"name":"c","context":{"cluster":"c","user":"u","namespace":"default"}}]}`, server.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return kubeconfig
}

func group(name, version string) map[string]any {
	v := map[string]any{"groupVersion": name + "/" + version, "version": version}
	return map[string]any{"name": name, "versions": []any{v}, "preferredVersion": v}
}

// TestHostileNamesAreVisible runs the plugin against a cluster whose texts would otherwise control the terminal.
func TestHostileNamesAreVisible(t *testing.T) {
	t.Parallel()
	kubeconfig := hostile(t)
	for args, code := range map[string]int{
		"list": 0, "status evil": 0, "status evil -o json": 0, "status other": 1, "events evil": 1, "logs evil": 1, "why evil": 1,
		"__complete status ": 0,
	} {
		var out, errs bytes.Buffer
		if got := run(t.Context(), append(strings.Fields(args), flagsFor(args, kubeconfig)...), &out, &errs); got != code {
			t.Errorf("%s: exit code %d, want %d: %q", args, got, code, errs.String())
		}
		shown := out.String() + errs.String()
		if i := strings.IndexFunc(shown, func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsGraphic(r) }); i >= 0 {
			t.Errorf("%s: %q reaches the terminal", args, shown)
		}
		if !strings.Contains(shown, `\x1b`) && !strings.Contains(shown, `\u001b`) && !strings.Contains(shown, `\e`) {
			t.Errorf("%s: the name is not shown: %q", args, shown)
		}
		if strings.Contains(shown, "\nstate       Ready") {
			t.Errorf("%s: a filter looks like a line of its own: %q", args, shown)
		}
	}
}

// flagsFor puts the kubeconfig where the command's arguments allow it.
func flagsFor(args, kubeconfig string) []string {
	if strings.HasPrefix(args, "__complete") {
		return []string{"--kubeconfig=" + kubeconfig, ""}
	}
	return []string{"--kubeconfig=" + kubeconfig}
}
