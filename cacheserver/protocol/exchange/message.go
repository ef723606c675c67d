// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package exchange parses the messages that clients stream: the row indices of a DoExchange, which are one int64 column, and the record
// batches of a DoPut.
//
// The messages are untrusted. Every length and offset is checked against the bytes that arrived before it is used, no memory is
// allocated by a length that a message states, and unneeded parts (metadata, alignment, padding) are skipped.
package exchange

import (
	"errors"
	"fmt"

	"google.golang.org/protobuf/encoding/protowire"
)

// Message is one FlightData message. Its slices point into the bytes that it was parsed from.
type Message struct {
	Command  []byte // the ticket or the command, from the Flight descriptor; nil if there is none
	Header   []byte // an Arrow IPC Message
	Body     []byte // the buffers that Header describes
	Metadata []byte // the application's

	descriptor []byte
}

// Field numbers of FlightData and FlightDescriptor in Flight.proto.
const (
	fieldDescriptor = 1
	fieldHeader     = 2
	fieldMetadata   = 3
	fieldBody       = 1000

	fieldCommand = 2
	fieldPath    = 3
)

// ParseMessage decodes the protobuf encoding of a FlightData message. A repeated field is an error.
func ParseMessage(raw []byte) (Message, error) {
	var m Message
	err := fields(raw, map[protowire.Number]*[]byte{fieldDescriptor: &m.descriptor, fieldHeader: &m.Header, fieldMetadata: &m.Metadata, fieldBody: &m.Body})
	if err != nil {
		return Message{}, fmt.Errorf("FlightData: %w", err)
	}
	if err := fields(m.descriptor, map[protowire.Number]*[]byte{fieldCommand: &m.Command}); err != nil {
		return Message{}, fmt.Errorf("FlightDescriptor: %w", err)
	}
	return m, nil
}

// Name returns the single element of the descriptor's path; nil if the message has none, or several.
func (m Message) Name() (name []byte) {
	if err := fields(m.descriptor, map[protowire.Number]*[]byte{fieldPath: &name}); err != nil {
		return nil
	}
	return name
}

// fields stores the requested length-delimited fields of a protobuf message and skips all others.
func fields(raw []byte, wanted map[protowire.Number]*[]byte) error {
	for len(raw) > 0 {
		number, kind, n := protowire.ConsumeTag(raw)
		if n < 0 {
			return errors.New("not a protobuf message")
		}
		raw = raw[n:]
		if to := wanted[number]; to != nil && kind == protowire.BytesType {
			value, n := protowire.ConsumeBytes(raw)
			if n < 0 {
				return fmt.Errorf("field %d is longer than the message", number)
			}
			if *to != nil {
				return fmt.Errorf("field %d comes twice", number)
			}
			*to, raw = value, raw[n:]
			continue
		}
		if n = protowire.ConsumeFieldValue(number, kind, raw); n < 0 {
			return fmt.Errorf("field %d is malformed", number)
		}
		raw = raw[n:]
	}
	return nil
}
