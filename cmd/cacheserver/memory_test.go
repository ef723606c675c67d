// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestFilterMemory(t *testing.T) {
	for _, tt := range []struct {
		limit, filters string
		want           int64
	}{{"2000000", "5%", 100_000}, {"1Gi", "16Mi", 16 << 20}, {"2Mi", "100%", 2 << 20}} {
		_, _, got, err := (&dataFlags{memory: tt.limit, filters: tt.filters, puts: "100%", writer: "100%"}).budget()
		if err != nil || got != tt.want {
			t.Errorf("%s of %s is %d, error %v; want %d", tt.filters, tt.limit, got, err, tt.want)
		}
	}
	for _, filters := range []string{"", "0%", "101%", "3000000", "x"} {
		if _, _, got, err := (&dataFlags{memory: "2000000", filters: filters, puts: "100%", writer: "100%"}).budget(); err == nil {
			t.Errorf("%q of 2000000 is accepted as %d bytes", filters, got)
		}
	}
}

func TestPutLimit(t *testing.T) {
	for limit, want := range map[string]int64{"100%": 1 << 30, "10%": 1 << 30 / 10, "64Mi": 64 << 20} {
		budget, puts, _, err := (&dataFlags{memory: "1Gi", filters: "5%", puts: limit, writer: "100%"}).budget()
		if err != nil || puts.Limit() != want {
			t.Fatalf("%s of 1Gi: %v, error %v; want %d", limit, puts, err, want)
		}
		if err := puts.Reserve(want / 2); err != nil || budget.Used() != want/2 {
			t.Errorf("%s of 1Gi: half of it reserved: %v, %d of all memory in use", limit, err, budget.Used())
		}
	}
	if _, puts, _, err := (&dataFlags{memory: "2000000", filters: "5%", puts: "3000000", writer: "100%"}).budget(); err == nil {
		t.Errorf("3000000 of 2000000 is accepted as %d bytes", puts.Limit())
	}
}

func TestPutLimitPerWriter(t *testing.T) {
	for writer, want := range map[string]int64{"100%": 0, "50%": 0, "10%": 1 << 30 / 10, "64Mi": 64 << 20} {
		budget, puts, _, err := (&dataFlags{memory: "1Gi", filters: "5%", puts: "50%", writer: writer}).budget()
		if err != nil || puts.EachLimit() != want {
			t.Fatalf("%s of 1Gi: %v, error %v; want %d", writer, puts, err, want)
		}
		if want == 0 {
			continue
		}
		if err := puts.Of("a", "").Reserve(want); err != nil || puts.Used() != want || budget.Used() != want {
			t.Errorf("%s of 1Gi: all of it reserved: %v, %d of the limit of puts and %d of all memory in use", writer, err, puts.Used(), budget.Used())
		}
		if puts.Of("a", "").Reserve(1) == nil || puts.Of("b", "").Reserve(1) != nil {
			t.Errorf("%s of 1Gi: the limit is not that of one writer", writer)
		}
	}
	if _, _, _, err := (&dataFlags{memory: "2000000", filters: "5%", puts: "50%", writer: "3000000"}).budget(); err == nil || !strings.Contains(err.Error(), "--put-limit-per-writer") {
		t.Errorf("3000000 of 2000000: %v", err)
	}
}

func TestLeastMemory(t *testing.T) {
	for text, spilled := range map[string]bool{"4": false, "1Ki": false, "262143": false, "96Mi": true, "98500Ki": true} {
		if _, err := memoryLimit(text, spilled); err == nil || !strings.HasPrefix(err.Error(), `--memory-limit: "`+text) {
			t.Errorf("%s: %v", text, err)
		}
	}
	for text, spilled := range map[string]bool{"256Ki": false, "98560Ki": true} {
		if got, err := memoryLimit(text, spilled); err != nil || got != leastLimit {
			t.Errorf("%s: %d, %v", text, got, err)
		}
	}
}
