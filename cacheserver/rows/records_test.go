// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"fmt"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
)

// TestRecordsOfLongValues reads messages that refer to the values in the arena instead of containing them.
func TestRecordsOfLongValues(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{nullable("n", arrow.PrimitiveTypes.Int64), nullable("v", arrow.BinaryTypes.String)}, nil)
	var rows []string
	for i := range 60 {
		rows = append(rows, fmt.Sprintf(`{"n":%d,"v":"%s"}`, i, strings.Repeat(fmt.Sprint(i), 40_000+i)))
	}
	whole := batchFromJSON(t, s, "["+strings.Join(rows, ",")+"]")
	st := load(t, s, 1<<20, whole)
	for message, err := range st.rows.Range(st.layout.All(), 0, 60) {
		if err != nil || len(message.Body) < 2 {
			t.Fatalf("a body of %d slices, error %v: want several", len(message.Body), err)
		}
		message.Release()
		break
	}
	equalBatches(t, "records", st.records(t, st.layout.All(), 0, 60), whole)
	equalBatches(t, "records from 7", st.records(t, st.layout.All(), 7, 51), whole.NewSlice(7, 51))
}

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
