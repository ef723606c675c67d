// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import "testing"

func TestFingerprint(t *testing.T) {
	a, err := fingerprintOf(map[string]any{"table": "t", "snapshot": 1})
	if err != nil {
		t.Fatal(err)
	}
	b, err := fingerprintOf(map[string]any{"snapshot": 1, "table": "t"})
	if err != nil {
		t.Fatal(err)
	}
	c, err := fingerprintOf(map[string]any{"snapshot": 2, "table": "t"})
	if err != nil {
		t.Fatal(err)
	}
	if a != b || a == c || len(a) != 32 {
		t.Errorf("fingerprints %s, %s, %s: want the first two equal, the third different, 32 digits", a, b, c)
	}
	if _, err := fingerprintOf(make(chan int)); err == nil {
		t.Error("a value without a JSON form has a fingerprint")
	}
}
