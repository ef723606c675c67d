// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"fmt"
	"io"
	"iter"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/kubeflow/datacache/cacheserver/offheap"
)

// Records yields rows [lo, hi) as record batches, each with rows of a single chunk and of about 1 MiB, or half of the
// size of the projection's allowance if that is less. A batch is valid until the next one is requested. The first error ends the sequence.
func (r *Rows) Records(p *Projection, lo, hi int64) iter.Seq2[arrow.RecordBatch, error] {
	return func(yield func(arrow.RecordBatch, error) bool) {
		next, stop := iter.Pull2(r.Range(p, lo, hi))
		defer stop()
		feed := &messageFeed{schema: SchemaHeader(p.schema), next: next, allowance: p.allowance}
		defer feed.Release()
		reader, err := ipc.NewReaderFromMessageReader(feed)
		if err != nil {
			yield(nil, fmt.Errorf("rows [%d, %d): %w", lo, hi, err))
			return
		}
		defer reader.Release()
		for reader.Next() {
			if !yield(reader.RecordBatch(), nil) {
				return
			}
		}
		if err := reader.Err(); err != nil {
			yield(nil, fmt.Errorf("rows [%d, %d): %w", lo, hi, err))
		}
	}
}

// messageFeed gives an IPC reader a schema and then the messages of next. It releases a message when the next one is requested.
type messageFeed struct {
	schema  []byte // nil once given
	next    func() (Message, error, bool)
	message Message
	joined  []byte // a body of several slices, joined

	allowance *offheap.Allowance // the capacity of joined is reserved in it
}

// Message implements ipc.MessageReader.
func (f *messageFeed) Message() (*ipc.Message, error) {
	if f.schema != nil {
		header := memory.NewBufferBytes(f.schema)
		f.schema = nil
		return ipc.NewMessage(header, memory.NewBufferBytes(nil)), nil
	}
	f.message.Release()
	m, err, ok := f.next()
	if !ok {
		f.message = Message{}
		return nil, io.EOF
	}
	if err != nil {
		f.message = Message{}
		return nil, err
	}
	f.message = m
	var body []byte
	if len(m.Body) == 1 {
		body = m.Body[0]
	} else {
		if err := f.grow(m.BodyLen); err != nil {
			return nil, err
		}
		for _, b := range m.Body {
			f.joined = append(f.joined, b...)
		}
		body = f.joined
	}
	return ipc.NewMessage(memory.NewBufferBytes(m.Header), memory.NewBufferBytes(body)), nil
}

// grow makes joined empty, with room for n bytes.
func (f *messageFeed) grow(n int) error {
	f.joined = f.joined[:0]
	more := n - cap(f.joined)
	if more <= 0 {
		return nil
	}
	if err := f.allowance.Reserve(int64(more)); err != nil {
		return err
	}
	f.joined = make([]byte, 0, n)
	return nil
}

// Retain implements ipc.MessageReader.
func (f *messageFeed) Retain() {}

// Release implements ipc.MessageReader. Further calls do nothing.
func (f *messageFeed) Release() {
	f.message.Release()
	f.allowance.Release(int64(cap(f.joined)))
	f.joined = nil
}
