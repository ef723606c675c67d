// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/chunk"
	"github.com/kubeflow/datacache/cacheserver/order"
	"github.com/kubeflow/datacache/cacheserver/wire"
)

// sender writes one stream's messages and counts them.
type sender struct {
	stream grpc.ServerStream
	begin  time.Time // of the work on the next message
	open   prometheus.Gauge
	bytes  prometheus.Counter
	rows   prometheus.Counter
	wait   prometheus.Counter
}

func (n *Node) newSender(stream grpc.ServerStream, kind wire.Kind) *sender {
	m, label := n.cfg.Metrics, string(kind)
	m.StreamsOpened.WithLabelValues(label).Inc()
	s := &sender{
		stream: stream, begin: time.Now(), open: m.Streams.WithLabelValues(label), bytes: m.SentBytes.WithLabelValues(label),
		rows: m.SentRows.WithLabelValues(label), wait: m.SendWait.WithLabelValues(label),
	}
	s.open.Inc()
	return s
}

func (s *sender) close() { s.open.Dec() }

// schema sends the stream's first message.
func (s *sender) schema(p *chunk.Projection) error {
	return s.frame(wire.NewFrame(chunk.SchemaHeader(p.Schema()), nil, nil, 0, nil))
}

// work notes that the node works on the next message from now on.
func (s *sender) work() { s.begin = time.Now() }

// batch sends one record batch, and with it how long the node worked on it.
func (s *sender) batch(m chunk.Message) error {
	metadata, err := json.Marshal(wire.BatchMetadata{Busy: time.Since(s.begin).Microseconds()})
	if err != nil {
		m.Release()
		return status.Errorf(codes.Internal, "encode metadata: %v", err)
	}
	if err := s.frame(wire.NewFrame(m.Header, metadata, m.Body, m.BodyLen, m.Release)); err != nil {
		return err
	}
	s.work()
	s.rows.Add(float64(m.Rows))
	return nil
}

// frame blocks while the transport has more to send than the client takes: that bounds a stream's memory.
func (s *sender) frame(f *wire.Frame) error {
	size, begin := f.Size(), time.Now()
	if err := wire.Send(s.stream, f); err != nil {
		return err
	}
	s.wait.Add(time.Since(begin).Seconds())
	s.bytes.Add(float64(size))
	return nil
}

// shard streams rows in row order, chunks as they lie.
func (s *sender) shard(l serving, p *chunk.Projection) error {
	rows := l.ticket.Rows
	return s.between(l, p, rows[0]-l.ticket.Bounds[0], rows[1]-l.ticket.Bounds[0])
}

// between streams the node's own rows [lo, hi).
func (s *sender) between(l serving, p *chunk.Projection, lo, hi int64) error {
	for message, err := range l.rows.Range(p, lo, hi) {
		if err != nil {
			return status.Errorf(codes.Internal, "read rows %d to %d: %v", lo, hi, err)
		}
		if err := s.batch(message); err != nil {
			return err
		}
	}
	return nil
}

// maxTakeBytes bounds the one batch that answers a batch of row numbers.
const maxTakeBytes = 1 << 30

// take answers one batch of the node's own row numbers, each a run, with one batch of rows.
func (s *sender) take(l serving, p *chunk.Projection, asked []order.Run) error {
	message, left, err := l.rows.Gather(p, asked, len(asked), maxTakeBytes)
	if err != nil {
		return status.Errorf(codes.Internal, "gather %d rows: %v", len(asked), err)
	}
	if len(left) > 0 {
		message.Release()
		return status.Errorf(codes.ResourceExhausted, "exchange: %d rows are more than the %d bytes that one batch may hold; ask for fewer at a time", len(asked), maxTakeBytes)
	}
	return s.batch(message)
}
