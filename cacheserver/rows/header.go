// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"
)

// Constants of the Arrow IPC format (Message.fbs, Schema.fbs).
const (
	metadataV5        = 4
	recordBatchHeader = 3
	slotVersion       = 0 // of Message
	slotHeaderType    = 1
	slotHeader        = 2
	slotBodyLength    = 3
	slotLength        = 0 // of RecordBatch
	slotNodes         = 1
	slotBuffers       = 2
)

// fieldNode is the struct FieldNode of the Arrow IPC format, with its memory layout.
type fieldNode struct {
	length, nulls int64
}

// span is the struct Buffer of the Arrow IPC format: the range of a buffer in the body.
type span struct {
	offset, length int64
}

// headers writes the IPC Message of record batches with a fixed number of nodes and buffers: the flatbuffer is built once, then
// copied and completed.
type headers struct {
	blank                              []byte
	length, bodyLength, nodes, buffers int // offsets of the fields in blank
	nodeCount, bufferCount             int
}

func newHeaders(nodes, buffers int) headers {
	b := flatbuffers.NewBuilder(256 + 16*(nodes+buffers))
	bufferVector := structs(b, buffers)
	nodeVector := structs(b, nodes)
	b.StartObject(5)
	b.PrependInt64Slot(slotLength, 1, 0) // not 0, since a field with its default value would be omitted
	b.PrependUOffsetTSlot(slotNodes, nodeVector, 0)
	b.PrependUOffsetTSlot(slotBuffers, bufferVector, 0)
	batch := b.EndObject()
	b.StartObject(5)
	b.PrependInt16Slot(slotVersion, metadataV5, 0)
	b.PrependByteSlot(slotHeaderType, recordBatchHeader, 0)
	b.PrependUOffsetTSlot(slotHeader, batch, 0)
	b.PrependInt64Slot(slotBodyLength, 1, 0)
	b.Finish(b.EndObject())

	blank := bytes.Clone(b.FinishedBytes())
	message := flatbuffers.Table{Bytes: blank, Pos: flatbuffers.GetUOffsetT(blank)}
	record := flatbuffers.Table{Bytes: blank, Pos: message.Indirect(field(message, slotHeader))}
	return headers{
		blank:       blank,
		bodyLength:  int(field(message, slotBodyLength)),
		length:      int(field(record, slotLength)),
		nodes:       int(record.Vector(field(record, slotNodes) - record.Pos)),
		buffers:     int(record.Vector(field(record, slotBuffers) - record.Pos)),
		nodeCount:   nodes,
		bufferCount: buffers,
	}
}

// structs writes a vector of n zero structs of two int64.
func structs(b *flatbuffers.Builder, n int) flatbuffers.UOffsetT {
	b.StartVector(16, n, 8)
	for range 2 * n {
		b.PrependInt64(0)
	}
	return b.EndVector(n)
}

// field is the offset of a table's field.
func field(t flatbuffers.Table, slot int) flatbuffers.UOffsetT {
	return t.Pos + flatbuffers.UOffsetT(t.Offset(flatbuffers.VOffsetT(4+2*slot)))
}

// size is the length of every header in bytes, a multiple of 8.
func (h *headers) size() int { return len(h.blank) }

// begin fills dst, which has size() bytes, except for the nodes and buffers, which the caller sets in the two slices. dst must start
// at a multiple of 8.
func (h *headers) begin(dst []byte, rows, bodyLength int64) ([]fieldNode, []span) {
	copy(dst, h.blank)
	binary.LittleEndian.PutUint64(dst[h.length:], uint64(rows))
	binary.LittleEndian.PutUint64(dst[h.bodyLength:], uint64(bodyLength))
	return h.tables(dst)
}

// tables returns the nodes and buffers of a header; the slices share its memory.
func (h *headers) tables(header []byte) ([]fieldNode, []span) {
	return structsOf[fieldNode](header[h.nodes:], h.nodeCount), structsOf[span](header[h.buffers:], h.bufferCount)
}

// structsOf returns the first n structs in memory, which must start at a multiple of 8.
func structsOf[T fieldNode | span | form](memory []byte, n int) []T {
	memory = memory[:n*int(unsafe.Sizeof(*new(T)))]
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(memory))), n)
}

// bytesOf is the memory of structs.
func bytesOf[T fieldNode | span | form](structs []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(structs))), len(structs)*int(unsafe.Sizeof(*new(T))))
}

// SchemaHeader is the IPC Message flatbuffer of a schema, without the stream's length prefix.
func SchemaHeader(schema *arrow.Schema) []byte {
	payload := ipc.GetSchemaPayload(schema, memory.DefaultAllocator)
	defer payload.Release()
	meta := payload.Meta()
	defer meta.Release()
	return bytes.Clone(meta.Bytes())
}

// ParseSchema is the inverse of SchemaHeader, for a header whose offsets and number of fields have been checked.
func ParseSchema(header []byte) (schema *arrow.Schema, err error) {
	defer func() {
		if p := recover(); p != nil { // as flatbuffers does at what is not checked
			err = fmt.Errorf("schema: %v", p)
		}
	}()
	reader, err := ipc.NewReaderFromMessageReader(&messageFeed{schema: header})
	if err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	defer reader.Release()
	return reader.Schema(), nil
}
