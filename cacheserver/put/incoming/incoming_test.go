// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package incoming

import (
	"math"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/kubeflow/datacache/cacheserver/protocol"
)

// TestNumbersOfARequest checks that a put does not begin with numbers that overflow where head and data nodes calculate with them.
func TestNumbersOfARequest(t *testing.T) {
	t.Parallel()
	schema := flight.SerializeSchema(arrow.NewSchema([]arrow.Field{{Name: "a", Type: arrow.PrimitiveTypes.Int64}}, nil), memory.DefaultAllocator)
	for _, c := range []struct {
		name string
		ask  protocol.Begin
		want string
	}{
		{"a year", protocol.Begin{TTL: 365 * 24 * 60 * 60}, ""},
		{"a second more", protocol.Begin{TTL: 365*24*60*60 + 1}, "ttl_s: 31536001, want 0 to 31536000"},
		{"the least that overflows a time.Duration", protocol.Begin{TTL: math.MaxInt64/1_000_000_000 + 1}, "ttl_s: 9223372037, want 0 to 31536000"},
		{"a negative time", protocol.Begin{TTL: -1}, "ttl_s: -1, want 0"},
		{"an exbibyte", protocol.Begin{Bytes: 1 << 60}, ""},
		{"twice as much is negative", protocol.Begin{Bytes: 1 << 62}, "bytes: 4611686018427387904, want 0 to 1152921504606846976"},
		{"negative bytes", protocol.Begin{Bytes: -1}, "bytes: -1, want 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.ask.Name, c.ask.Parts, c.ask.Schema = "rows", 1, schema
			if _, err := New(c.ask, 2); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
}
