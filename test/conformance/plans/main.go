// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command plans prints which data files of tables a filter leaves, for test_pruning.py: cacheserver inspect would be started once for
// each filter. It reads lines of JSON with a metadata file and a filter, and answers each with a line: the JSON list of the files.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"slices"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
)

func main() {
	ctx := context.Background() //nolint:forbidigo // the context of the whole program
	store := objstore.New(objstore.Config{})
	in, out := json.NewDecoder(bufio.NewReader(os.Stdin)), json.NewEncoder(os.Stdout)
	for in.More() {
		var wanted struct{ Metadata, Filter string }
		must(in.Decode(&wanted))
		table, err := iceberg.Open(ctx, store, iceberg.Location{Metadata: wanted.Metadata}, iceberg.Selection{Filter: wanted.Filter})
		must(err)
		splits, err := table.Plan(ctx, nil)
		must(err)
		files := []string{}
		for _, s := range splits {
			files = append(files, s.File)
		}
		must(out.Encode(slices.Compact(files)))
	}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
