// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command dashboards writes the Grafana dashboards into a folder: dashboards FOLDER. `make generate` runs it.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: dashboards FOLDER")
		os.Exit(2)
	}
	if err := write(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "dashboards:", err)
		os.Exit(1)
	}
}

func write(folder string) error {
	for _, b := range boards {
		text, err := b.json()
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(folder, b.file()), text, 0o644); err != nil { //nolint:gosec // it is committed, and public
			return err
		}
	}
	return nil
}

// json returns the dashboard as it is committed.
func (b board) json() ([]byte, error) {
	built, err := b.build()
	if err != nil {
		return nil, fmt.Errorf("dashboard %s: %w", b.name, err)
	}
	text, err := json.MarshalIndent(built, "", "  ")
	return append(text, '\n'), err
}
