// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import "testing"

func TestParseMemory(t *testing.T) {
	for text, want := range map[string]int64{
		"1": 1, "1024": 1024, "12Gi": 12 << 30, "12GiB": 12 << 30, "1.5Gi": 3 << 29, "500MB": 500e6, "500M": 500e6, "2k": 2000, "7B": 7, "1TB": 1e12,
	} {
		if got, err := ParseMemory(text); err != nil || got != want {
			t.Errorf("%q is %d, error %v; want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "0", "-1", "1e30", "Gi", "12 Gi", "12X", "NaN", "0%", "101%", "-3%", "x%", "%"} {
		if got, err := ParseMemory(text); err == nil {
			t.Errorf("%q is accepted as %d bytes", text, got)
		}
	}
	all, err := machineMemory()
	if err != nil {
		t.Fatal(err)
	}
	if half, err := ParseMemory("50%"); err != nil || half != all/2 {
		t.Errorf("50%% of %d is %d, error %v", all, half, err)
	}
}
