// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package goldentest compares what a test made with a golden file, or writes the file: go test PACKAGE -update.
package goldentest

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files anew") //nolint:forbidigo // a flag of the test binary

// Compare fails the test if the file at the path, relative to the package, has other content.
func Compare(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s differs (-want +got); if that is meant: run the test with -update\n%s", path, diff)
	}
}
