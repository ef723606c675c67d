// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/kubeflow/datacache/test/kit/icetest"
)

func TestCompletion(t *testing.T) {
	t.Parallel()
	table := icetest.Local(t).Plain("events", 2, 2, 10, 10)
	table.Tag("v1", table.Snapshot().ID)
	at := "--metadata " + table.Metadata()
	for args, want := range map[string]string{
		"__complete head --transport ":                 "h2\ngrpc\n:4\n",
		"__complete local --log-format ":               "text\njson\n:4\n",
		"__complete head --metadata ":                  ":0\n",
		"__complete local " + at + " --columns ca":     "id\tlong\nnumber\tdouble\ncategory\tstring\ntext\tstring\n:4\n",
		"__complete head " + at + " --columns id,ca":   "id,id\tlong\nid,number\tdouble\nid,category\tstring\nid,text\tstring\n:4\n",
		"__complete inspect " + at + " --ref ":         "main\tbranch\nv1\ttag\n:4\n",
		"__complete inspect " + at + " --snapshot-id ": fmt.Sprint(table.Snapshot().ID) + "\t20",
		"__complete inspect --metadata nowhere --ref ": ":4\n",
		"__complete inspect --columns ":                ":4\n",
	} {
		root := root(func(string) string { return "" })
		var out bytes.Buffer
		root.SetOut(&out)
		root.SetArgs(strings.Split(args, " "))
		if err := root.ExecuteContext(t.Context()); err != nil || !strings.HasPrefix(out.String(), want) {
			t.Errorf("%s gives %q (%v), want %q", args, out.String(), err, want)
		}
	}
}
