// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import "testing"

func TestRecordsRefuse(t *testing.T) {
	st := load(t, numbers(t, 0, 0).Schema(), 0, numbers(t, 0, 5))
	for _, r := range [][2]int64{{-1, 2}, {3, 2}, {0, 6}} {
		failed := false
		for _, err := range st.rows.Records(st.layout.All(), r[0], r[1]) {
			failed = err != nil
		}
		if !failed {
			t.Errorf("rows [%d, %d) of 5 are no error", r[0], r[1])
		}
	}
	for range st.rows.Records(st.layout.All(), 0, 5) {
		break // the message is released
	}
}
