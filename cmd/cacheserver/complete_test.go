// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
)

func TestCompletion(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"__complete head --transport ":         "h2\ngrpc\n:4\n",
		"__complete local --log-format ":       "text\njson\n:4\n",
		"__complete object-cache --log-level ": "debug\ninfo\nwarn\nerror\n:4\n",
		"__complete head --metadata ":          ":0\n",
		"__complete obj":                       "object-cache",
	} {
		root := command(func(string) string { return "" })
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetArgs(strings.Split(args, " "))
		if err := root.ExecuteContext(t.Context()); err != nil || !strings.HasPrefix(out.String(), want) {
			t.Errorf("%s gives %q (%v), want %q", args, out.String(), err, want)
		}
	}
}
