// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"bytes"
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestGoldenMetadata decodes and re-encodes the metadata in the golden file, against which the conformance tests check the server: no
// field may be missing or added.
func TestGoldenMetadata(t *testing.T) {
	text, err := os.ReadFile("../../test/golden/wire_metadata.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Cases []struct {
			Name     string
			Metadata json.RawMessage
		}
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Cases) < 4 {
		t.Fatalf("%d cases: is this the right file?", len(file.Cases))
	}
	for _, tt := range file.Cases {
		t.Run(tt.Name, func(t *testing.T) {
			kind, _, _ := strings.Cut(tt.Name, " ")
			into := map[string]any{"answer": &InfoMetadata{}, "endpoint": &EndpointMetadata{}, "batch": &BatchMetadata{}}[kind]
			decoder := json.NewDecoder(bytes.NewReader(tt.Metadata))
			decoder.DisallowUnknownFields()
			if err := decoder.Decode(into); err != nil {
				t.Fatal(err)
			}
			again, err := json.Marshal(into)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(values(t, tt.Metadata), values(t, again)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func values(t *testing.T, text []byte) map[string]any {
	t.Helper()
	var v map[string]any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatal(err)
	}
	return v
}
