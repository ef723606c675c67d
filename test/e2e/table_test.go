// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kubeflow/datacache/test/kit/icetest"
)

// table describes a table for sdk/tables.py.
type table struct {
	Name     string `json:"name"`
	Rows     int    `json:"rows"`
	Files    int    `json:"files"`
	Width    int    `json:"width"` // approximate bytes of a row's content
	Truncate bool   `json:"truncate"`
	Words    bool   `json:"words"` // contents of words, of which the label can be learnt
	Moves    bool   `json:"moves"` // for moving only
	Plain    bool   `json:"plain"` // no table, only its files; write returns their folder
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
	done.uri = strings.TrimSpace(string(w.make(t)))
	t.Logf("wrote %d rows: %s", w.Rows, done.uri)
	return done.uri
}

// make runs sdk/tables.py and returns what it prints.
func (w table) make(t *testing.T) []byte {
	t.Helper()
	var environment []string
	for name, value := range storeKeys(t) {
		environment = append(environment, name+"="+string(value))
	}
	if given := os.Getenv("E2E_STORE"); given != "" {
		environment = append(environment, "AWS_ENDPOINT_URL="+given)
	}
	return runPython(t, environment, w, "tables.py")
}

// moving writes the table, and serves it as demo.reviews of a REST catalog, whose URI it returns. The table moves once it was loaded: all
// later clients get one with another file.
func (w table) moving(t *testing.T) (catalog string) {
	t.Helper()
	w.Moves = true
	var answers []icetest.Loaded
	if err := json.Unmarshal(w.make(t), &answers); err != nil || len(answers) != 2 {
		t.Fatalf("sdk/tables.py printed %d tables: %v", len(answers), err)
	}
	var loads atomic.Int64
	return icetest.ServeCatalog(t, ownAddress(t), func() icetest.Loaded { return answers[min(loads.Add(1), 2)-1] })
}
