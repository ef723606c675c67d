// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

func TestFilterMemory(t *testing.T) {
	for _, tt := range []struct {
		limit, filters string
		want           int64
	}{{"1000", "5%", 50}, {"1Gi", "16Mi", 16 << 20}, {"100", "100%", 100}} {
		_, _, got, err := (&dataFlags{memory: tt.limit, filters: tt.filters, puts: "100%"}).budget()
		if err != nil || got != tt.want {
			t.Errorf("%s of %s is %d, error %v; want %d", tt.filters, tt.limit, got, err, tt.want)
		}
	}
	for _, filters := range []string{"", "0%", "101%", "2000", "x"} {
		if _, _, got, err := (&dataFlags{memory: "1000", filters: filters, puts: "100%"}).budget(); err == nil {
			t.Errorf("%q of 1000 is accepted as %d bytes", filters, got)
		}
	}
}

func TestPutLimit(t *testing.T) {
	for limit, want := range map[string]int64{"100%": 1 << 30, "10%": 1 << 30 / 10, "64Mi": 64 << 20} {
		budget, puts, _, err := (&dataFlags{memory: "1Gi", filters: "5%", puts: limit}).budget()
		if err != nil || puts.Limit() != want {
			t.Fatalf("%s of 1Gi: %v, error %v; want %d", limit, puts, err, want)
		}
		if err := puts.Reserve(want / 2); err != nil || budget.Used() != want/2 {
			t.Errorf("%s of 1Gi: half of it reserved: %v, %d of all memory in use", limit, err, budget.Used())
		}
	}
	if _, puts, _, err := (&dataFlags{memory: "1000", filters: "5%", puts: "2000"}).budget(); err == nil {
		t.Errorf("2000 of 1000 is accepted as %d bytes", puts.Limit())
	}
}
