// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestProbe(t *testing.T) {
	top := t.TempDir()
	for _, folder := range []string{"full/class-1", "empty"} {
		if err := os.MkdirAll(filepath.Join(top, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for name, tt := range map[string]struct {
		folders []string
		want    string
		err     string
	}{
		"full":         {[]string{"full"}, `full: first entry "class-1"`, ""},
		"empty":        {[]string{"empty"}, "empty: empty", ""},
		"several":      {[]string{"full", "empty"}, "empty: empty", ""},
		"not there":    {[]string{"full", "none"}, "", "none: no such file or directory"},
		"none at all":  {nil, "", "at least 1 arg"},
		"not a folder": {[]string{"file"}, "file: a file", ""},
	} {
		t.Run(name, func(t *testing.T) {
			if err := os.WriteFile(filepath.Join(top, "file"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			args := []string{"probe"}
			for _, folder := range tt.folders {
				args = append(args, filepath.Join(top, folder))
			}
			cmd := root(func(string) string { return "" })
			cmd.SetOut(&out)
			cmd.SetArgs(args)
			err := cmd.ExecuteContext(t.Context())
			if !strings.Contains(out.String(), tt.want) || tt.err == "" && err != nil || tt.err != "" && (err == nil || !strings.Contains(err.Error(), tt.err)) {
				t.Errorf("it wrote %q and ended with %v, want %q and %q", out.String(), err, tt.want, tt.err)
			}
		})
	}
}
