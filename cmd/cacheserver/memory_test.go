// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

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
