// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package seedtest

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSeedsByTheVariable(t *testing.T) {
	for text, want := range map[string][]uint64{"": {1, 2, 3, 99}, "0": {0, 1, 2}, "7": {7, 8, 9}, "18446744073709551615": {1<<64 - 1, 0, 1}} {
		c, err := parse(text)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, c.seeds(3, []uint64{99})); diff != "" {
			t.Errorf("SEED=%q: seeds (-want +got):\n%s", text, diff)
		}
	}
}

func TestRandomSeeds(t *testing.T) {
	seen := map[uint64]bool{}
	for range 10 {
		c, err := parse("random")
		if err != nil || c.given {
			t.Fatalf("SEED=random: %+v, %v", c, err)
		}
		seen[c.seed] = true
	}
	if len(seen) == 1 {
		t.Errorf("SEED=random gave the same seed 10 times: %v", seen)
	}
}

func TestAllTestsOfAProcessHaveOneSeed(t *testing.T) {
	t.Setenv(variable, "random") // the seed was chosen before, or stays what it is
	first := Seed(t)
	t.Setenv(variable, "7")
	if again := Seed(t); again != first || New(t).Uint64() != New(t).Uint64() {
		t.Errorf("the second call of Seed gives %d, the first gave %d", again, first)
	}
}

func TestWrongSeedsAreRejected(t *testing.T) {
	for _, text := range []string{"-1", "x", "Random", "1.5", "18446744073709551616", " 1"} {
		if _, err := parse(text); err == nil || !strings.Contains(err.Error(), `want an integer in [0, 2^64), or "random"`) {
			t.Errorf("SEED=%q: %v", text, err)
		}
	}
}
