// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"os"
	"strings"
	"sync"
	"testing"
)

// table describes a table for sdk/tables.py.
type table struct {
	Name     string `json:"name"`
	Rows     int    `json:"rows"`
	Files    int    `json:"files"`
	Width    int    `json:"width"` // approximate bytes of a row's content
	Truncate bool   `json:"truncate"`
	Words    bool   `json:"words"` // contents of words, of which the label can be learnt
}

// reviews is the table of most tests.
var reviews = table{Name: "reviews", Rows: 20_000, Files: 4, Width: 200}

// tables has the tables that are written or being written.
var tables sync.Map // maps table to *written

// written is the location of a table's metadata file; "" while it does not exist.
type written struct {
	mu  sync.Mutex
	uri string
}

// write writes the table to the object store, once for all tests, and returns the URI of its metadata file.
func (w table) write(t *testing.T) string {
	t.Helper()
	entry, _ := tables.LoadOrStore(w, &written{})
	done := entry.(*written)
	done.mu.Lock()
	defer done.mu.Unlock()
	if done.uri != "" {
		return done.uri
	}
	keys := storeKeys(t)
	var environment []string
	for name, value := range keys {
		environment = append(environment, name+"="+string(value))
	}
	if given := os.Getenv("E2E_STORE"); given != "" {
		environment = append(environment, "AWS_ENDPOINT_URL="+given)
	}
	done.uri = strings.TrimSpace(string(runPython(t, environment, w, "tables.py")))
	t.Logf("wrote %d rows: %s", w.Rows, done.uri)
	return done.uri
}
