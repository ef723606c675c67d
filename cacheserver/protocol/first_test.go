// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/cacheserver/epoch"
)

// TestParseFirst parses commands of epochs, with and without the fields that may be missing.
func TestParseFirst(t *testing.T) {
	whole := &First{
		Epoch: epoch.Epoch{Seed: 7, Number: 2, Shuffle: true, Clump: 4, GlobalBatch: 256, Tail: "drop"}, Share: epoch.Share{World: 1, Workers: 1, StartStep: 3},
	}
	short, err := ParseFirst(`{"seed":7,"epoch":2,"clump":4,"global_batch":256,"start_step":3}`)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(whole, short); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if rank, err := ParseFirst(`{"v":1,"kind":"epoch","seed":7,"epoch":2,"global_batch":256,"tail":"drop","rank":3,"world":8}`); err != nil || rank.Share.Rank != 3 || rank.Share.World != 8 {
		t.Errorf("a rank's share is %+v: %v", rank, err)
	}
	for command, want := range map[string]string{
		`seed=7`:           "such as {",
		`{"seed":7}`:       "missing",
		`{"kind":"shard"}`: "no field of kind",
		`{"seed":7,"epoch":2,"global_batch":256,"tail":"drop","filter":"id = 1"}`: "without filter",
		`{"seed":7,"global_batch":0}`: "global_batch",
	} {
		if _, err := ParseFirst(command); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", command, err, want)
		}
	}
}
