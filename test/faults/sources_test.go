// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestSourcesAreOpened opens the sources of the server. go test caches a passed result until a file changes that a test opened or
// compiled; it doesn't know that TestMain builds the binary from these.
func TestSourcesAreOpened(t *testing.T) {
	opened := 0
	for _, root := range []string{"../../cmd", "../../cacheserver", "../../go.mod"} {
		err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
			if err != nil || strings.HasSuffix(path, "_test.go") || (!strings.HasSuffix(path, ".go") && !strings.HasSuffix(path, ".mod")) {
				return err
			}
			opened++
			_, err = os.ReadFile(path)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if opened < 50 {
		t.Errorf("%d files opened: are these the server's sources?", opened)
	}
}
