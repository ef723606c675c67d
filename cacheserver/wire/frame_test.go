// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/protobuf/proto"
)

// TestFrameIsFlightData decodes hand-made frames with the generated protobuf code.
func TestFrameIsFlightData(t *testing.T) {
	big := bytes.Repeat([]byte("0123456789abcdef"), 1000)
	tests := []struct {
		name string
		body [][]byte
	}{
		{"no body", nil},
		{"one slice", [][]byte{big}},
		{"small slices are copied", [][]byte{[]byte("ab"), []byte("cd")}},
		{"mixed", [][]byte{big, []byte("x"), big[:2048:2048], {}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			want := bytes.Join(tt.body, nil)
			released := 0
			f := NewFrame([]byte("header"), tt.body, len(want), func() { released++ })
			data, err := NewCodec().Marshal(f)
			if err != nil {
				t.Fatal(err)
			}
			f.Discard() // the transport has it: this must do nothing
			var got flight.FlightData
			if err := proto.Unmarshal(data.Materialize(), &got); err != nil {
				t.Fatal(err)
			}
			if data.Len() != f.Size() || string(got.DataHeader) != "header" || !bytes.Equal(got.DataBody, want) {
				t.Errorf("%d bytes of %d, header %q, body of %d bytes, want %d", data.Len(), f.Size(), got.DataHeader, len(got.DataBody), len(want))
			}
			data.Free()
			if released != 1 {
				t.Errorf("released %d times", released)
			}
		})
	}
}

func TestUnsentFrame(t *testing.T) {
	released := 0
	f := NewFrame(nil, [][]byte{make([]byte, 4096)}, 4096, func() { released++ })
	f.Discard()
	if released != 1 {
		t.Errorf("released %d times", released)
	}
}

func TestCodecPassesOthers(t *testing.T) {
	c := NewCodec()
	data, err := c.Marshal(&flight.Ticket{Ticket: []byte("t")})
	if err != nil {
		t.Fatal(err)
	}
	var ticket flight.Ticket
	if err := c.Unmarshal(data, &ticket); err != nil || string(ticket.Ticket) != "t" {
		t.Errorf("ticket %q, error %v", ticket.Ticket, err)
	}
	raw := Raw("bytes")
	if data, err = c.Marshal(&raw); err != nil {
		t.Fatal(err)
	}
	var back Raw
	if err := c.Unmarshal(data, &back); err != nil || string(back) != "bytes" {
		t.Errorf("raw %q, error %v", back, err)
	}
	if _, err := c.Marshal(42); err == nil {
		t.Error("an int was encoded")
	}
	if err := c.Unmarshal(data, &ticket); err == nil {
		t.Error("nonsense was decoded as a ticket")
	}
}
