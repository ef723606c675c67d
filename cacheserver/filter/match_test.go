// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/go-cmp/cmp"
)

// matchBatch has columns of types that pyiceberg does not write, of which test/conformance has no filters.
func matchBatch(t *testing.T) arrow.RecordBatch {
	t.Helper()
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: extensions.NewUUIDType(), Nullable: true},
		{Name: "code", Type: &arrow.FixedSizeBinaryType{ByteWidth: 2}, Nullable: true},
		{Name: "at", Type: &arrow.TimestampType{Unit: arrow.Nanosecond}, Nullable: true},
		{Name: "at_utc", Type: &arrow.TimestampType{Unit: arrow.Nanosecond, TimeZone: "UTC"}},
		{Name: "tags", Type: arrow.ListOf(arrow.BinaryTypes.String), Nullable: true},
	}, nil)
	batch, _, err := array.RecordFromJSON(memory.DefaultAllocator, schema, strings.NewReader(`[
		{"id": "00000000-0000-0000-0000-000000000001", "code": "AQI=", "at": 1704067200000000001, "at_utc": 1704067200000000001, "tags": ["a"]},
		{"id": null, "code": null, "at": null, "at_utc": 1704070800000000000, "tags": null},
		{"id": "00000000-0000-0000-0000-0000000000ff", "code": "/wA=", "at": 1704067200000000002, "at_utc": 1704153600000000000, "tags": []}]`))
	if err != nil {
		t.Fatal(err)
	}
	return batch
}

func TestMatch(t *testing.T) {
	batch := matchBatch(t)
	for filter, want := range map[string]string{
		"id = UUID '00000000-0000-0000-0000-0000000000ff'": "001",
		"id IS NOT NULL":  "101",
		"code <= X'0102'": "100",
		"at > TIMESTAMP '2024-01-01 00:00:00.000000001'":         "001",
		"at_utc >= '2024-01-01T02:00:00+01:00'":                  "011",
		"code = X'ff00' OR at = '2024-01-01 00:00:00.000000001'": "101",
		"TRUE":           "111",
		"at_utc IS NULL": "000",
	} {
		m, err := Match(batch.Schema(), filter)
		if err != nil {
			t.Errorf("%s: %v", filter, err)
			continue
		}
		var columns []arrow.Array
		for _, c := range m.Columns() {
			columns = append(columns, batch.Column(c))
		}
		keep, err := m.Evaluator()(columns, int(batch.NumRows()))
		if err != nil {
			t.Errorf("%s: %v", filter, err)
			continue
		}
		got := make([]byte, 0, len(want))
		for i := range want {
			got = append(got, '0'+keep[0]>>i&1)
		}
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", filter, diff)
		}
	}
	for filter, says := range map[string]string{"nope = 1": "the columns are id, code, at, at_utc", "tags = 'a'": "tags"} {
		if _, err := Match(batch.Schema(), filter); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, want an error with %q", filter, err, says)
		}
	}
}
