// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"go/token"
	"path/filepath"
	"testing"
)

// TestBars holds the product's code against what was reached: a room that a reader can oversee, and a TrainJob that goes through the
// control plane without coming back to the same files again and again.
func TestBars(t *testing.T) {
	t.Chdir(filepath.Join("..", ".."))
	h := &house{fset: token.NewFileSet(), packages: map[string][]*file{}, rooms: map[string]int{}, methods: map[string]int{}}
	if err := filepath.WalkDir(".", h.visit); err != nil {
		t.Fatal(err)
	}
	for room, lines := range h.rooms {
		if lines > 4000 {
			t.Errorf("%s has %d lines of code, at most 4000 are allowed: give what stands alone in it a package of its own", room, lines)
		}
	}
	for name, methods := range h.methods {
		if methods > 30 {
			t.Errorf("%s has %d methods, at most 30 are allowed: give a part of it a type of its own", name, methods)
		}
	}
	for _, door := range h.walks() {
		if door.size > 15 {
			t.Errorf("a TrainJob that enters by %s comes back %d times to a file that it had left, at most 15 are allowed: "+
				"hand on what package request read of it", door.name, door.size)
		}
		if door.size == 0 {
			t.Errorf("a TrainJob that enters by %s never comes back: the walk loses sight of it", door.name)
		}
	}
}
