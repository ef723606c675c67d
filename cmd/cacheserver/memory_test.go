// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

func TestParseMemory(t *testing.T) {
	for text, want := range map[string]int64{
		"1": 1, "1024": 1024, "12Gi": 12 << 30, "12GiB": 12 << 30, "1.5Gi": 3 << 29, "500MB": 500e6, "500M": 500e6, "2k": 2000, "7B": 7, "1TB": 1e12,
	} {
		if got, err := parseMemory(text); err != nil || got != want {
			t.Errorf("%q is %d, error %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "1e30", "Gi", "12 Gi", "12X", "NaN", "0%", "101%", "-3%", "x%", "%"} {
		if got, err := parseMemory(text); err == nil {
			t.Errorf("%q is accepted as %d bytes", text, got)
		}
	}
	all, err := machineMemory()
	if err != nil {
		t.Fatal(err)
	}
	if half, err := parseMemory("50%"); err != nil || half != all/2 {
		t.Errorf("50%% of %d is %d, error %v", all, half, err)
	}
}

func TestFilterMemory(t *testing.T) {
	for _, tt := range []struct {
		limit, filters string
		want           int64
	}{{"1000", "5%", 50}, {"1Gi", "16Mi", 16 << 20}, {"100", "100%", 100}} {
		_, got, err := (&dataFlags{memory: tt.limit, filters: tt.filters}).budget()
		if err != nil || got != tt.want {
			t.Errorf("%s of %s is %d, error %v; want %d", tt.filters, tt.limit, got, err, tt.want)
		}
	}
	for _, filters := range []string{"", "0%", "101%", "2000", "x"} {
		if _, got, err := (&dataFlags{memory: "1000", filters: filters}).budget(); err == nil {
			t.Errorf("%q of 1000 is accepted as %d bytes", filters, got)
		}
	}
}
