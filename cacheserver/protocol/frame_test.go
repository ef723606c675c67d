// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"bytes"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/protobuf/proto"
)

// TestFrameIsFlightData decodes frames with the generated protobuf code.
func TestFrameIsFlightData(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 1000)
	tests := []struct {
		name string
		body [][]byte
	}{
		{"no body", nil},
		{"one slice", [][]byte{big}},
		{"small slices", [][]byte{[]byte("ab"), []byte("cd")}},
		{"mixed", [][]byte{big, []byte("x"), big[:2048:2048], {}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := bytes.Join(tt.body, nil)
			released := 0
			f := NewFrame([]byte("header"), []byte("more"), tt.body, len(want), func() { released++ })
			data := bytes.Join(f.AppendSlices(nil), nil)
			var got flight.FlightData
			if err := proto.Unmarshal(data, &got); err != nil {
				t.Fatal(err)
			}
			if header := string(bytes.TrimRight(got.DataHeader, "\x00")); header != "header" || string(got.AppMetadata) != "more" {
				t.Errorf("header %q, metadata %q", header, got.AppMetadata)
			}
			if len(data) != f.Size() || !bytes.Equal(got.DataBody, want) {
				t.Errorf("%d bytes of %d, body of %d bytes, want %d", len(data), f.Size(), len(got.DataBody), len(want))
			}
			f.Release()
			f.Release()
			if released != 1 {
				t.Errorf("released %d times", released)
			}
		})
	}
}

// TestFrameBodyIsAligned covers the header lengths around those where the encoding of the length itself grows by a byte.
func TestFrameBodyIsAligned(t *testing.T) {
	for _, metadata := range [][]byte{nil, []byte(`{"busy_us":7}`)} {
		for length := range 300 {
			header := bytes.Repeat([]byte{1}, 8*length)
			f := NewFrame(header, metadata, [][]byte{make([]byte, 64)}, 64, nil)
			if at := f.Size() - 64; at%bodyAlign != 0 || at > len(header)+len(metadata)+32 {
				t.Errorf("a header of %d bytes: the body starts at %d", len(header), at)
			}
		}
	}
}
