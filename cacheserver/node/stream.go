// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/fair"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/exchange"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/transport"
)

// sender sends one stream's messages, within the memory reserved for them, and counts them.
type sender struct {
	stream  grpc.ServerStream
	node    *Node
	memory  *rows.Allowance
	most    int64         // maximum bytes of a message, unless a single row is longer
	timeout time.Duration // how long the client may take to read a message
	waiting atomic.Int64  // since when the client has not read the message being sent, in Unix nanoseconds; 0: no message is being sent
	shed    atomic.Bool   // it was ended to free memory for others
	begin   time.Time     // when the node started working on the next message
	opened  time.Time
	open    prometheus.Gauge
	bytes   prometheus.Counter
	rows    prometheus.Counter
	wait    prometheus.Counter
	made    prometheus.Counter

	turn     *fair.Stream
	jobBytes prometheus.Counter
	jobWait  prometheus.Counter
	key      readerKey
	reader   *reader
	sent     sent
}

const (
	// streamFraction is the divisor of the free memory that bounds a new stream's messages, between leastBytes and 4 MiB: the more
	// streams there are, the shorter the batches of the next one, so that idle streams leave memory to others.
	streamFraction = 64
	mostStream     = 4 << 20
	// slowest is the rate in bytes per second below which a client counts as not reading a long message.
	slowest = 1 << 20
)

// newSender adds a stream to its ticket's job and reserves memory for it. The caller closes the sender.
func (n *Node) newSender(stream grpc.ServerStream, ticket protocol.Ticket) (_ *sender, err error) {
	kind, job := ticket.Kind, jobOf(stream.Context(), ticket)
	now := time.Now()
	s := &sender{stream: stream, node: n, timeout: n.cfg.SendTimeout, begin: now, opened: now, key: keyOf(stream.Context(), ticket)}
	if err := s.joinJob(job); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			s.turn.Leave()
		}
	}()
	messages, requests := int64(1), int64(0)
	if n.cfg.Transport == transport.GRPC { // one is being sent while the next one is gathered
		messages = 2
		if kind == protocol.Take {
			requests = transport.MaxRows
		}
	}
	err = n.withMemory(stream.Context(), func() (err error) {
		clients := n.cfg.Budget.Clients()
		s.most = min(max(clients.Free()/streamFraction, leastBytes), mostStream)
		s.most = 1 << (bits.Len64(uint64(s.most)) - 1) // buffers have powers of two as sizes
		s.memory, err = clients.Allow(messages*s.most + requests)
		return err
	})
	if err != nil {
		return nil, refusal(err, "no memory for another stream")
	}
	m, label := n.cfg.Metrics, string(kind)
	m.StreamsOpened.WithLabelValues(label).Inc()
	s.bytes, s.rows = m.SentBytes.WithLabelValues(label), m.SentRows.WithLabelValues(label)
	s.wait, s.made = m.SendWait.WithLabelValues(label), m.Work.WithLabelValues(label)
	s.jobBytes, s.jobWait = m.JobBytes.Of(job), m.JobWait.Of(job)
	s.reader = n.readers.begin(s.key, time.Now())
	s.open = m.Streams.WithLabelValues(label)
	s.open.Inc()
	n.senders.add(s)
	return s, nil
}

// close ends the stream; err is what its call returns.
func (s *sender) close(err error) {
	s.turn.Leave()
	s.node.senders.remove(s)
	s.node.readers.end(s.reader, time.Now())
	s.memory.Close()
	s.open.Dec()
	s.trace(err)
}

// refusal returns the status for an error: its own if it is one, RESOURCE_EXHAUSTED with the bytes needed and available, or INTERNAL.
func refusal(err error, format string, args ...any) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	code := codes.Internal
	var full *rows.ExhaustedError
	if errors.As(err, &full) {
		code = codes.ResourceExhausted
	}
	return status.Errorf(code, "%s: %v", fmt.Sprintf(format, args...), err)
}

// schema sends the stream's first message.
func (s *sender) schema(p *rows.Projection) error {
	return s.frame(protocol.NewFrame(rows.SchemaHeader(p.Schema()), nil, nil, 0, nil))
}

// work records that the node starts working on the next message.
func (s *sender) work() { s.begin = time.Now() }

// batch sends one record batch, with the time that the node worked on it.
func (s *sender) batch(m rows.Message) error {
	busy := time.Since(s.begin)
	metadata, err := json.Marshal(protocol.BatchMetadata{Busy: busy.Microseconds()})
	if err != nil {
		m.Release()
		return status.Errorf(codes.Internal, "encode metadata: %v", err)
	}
	if err := s.frame(protocol.NewFrame(m.Header, metadata, m.Body, m.BodyLen, m.Release)); err != nil {
		return err
	}
	s.work()
	s.rows.Add(float64(m.Rows))
	s.made.Add(busy.Seconds())
	s.sent.rows += int64(m.Rows)
	s.sent.node += busy
	for _, t := range []*traffic{&s.reader.traffic, &s.node.readers.total} {
		t.rows.Add(int64(m.Rows))
		t.node.Add(int64(busy))
	}
	return nil
}

// frame sends a frame. It blocks while the client does not read what the transport has to send, which bounds a stream's memory. If
// the client does not read it in time, the stream is ended to free its memory.
func (s *sender) frame(f *protocol.Frame) error {
	size, begin := f.Size(), time.Now()
	timeout := s.timeout + time.Duration(size)*time.Second/slowest
	end := time.AfterFunc(timeout, func() { transport.Cancel(s.stream.Context()) })
	s.waiting.Store(begin.UnixNano())
	err := transport.Send(s.stream, f)
	s.waiting.Store(0)
	waited := time.Since(begin)
	s.sent.client += waited
	if s.shed.Load() {
		return status.Error(codes.Unavailable, "the client did not read, and others needed the memory: ask the head again, and read on from there")
	}
	if inTime := end.Stop(); !inTime {
		return status.Errorf(codes.Unavailable, "the client did not read a message of %d bytes within %s: ask the head again, and read on from there", size, timeout.Round(time.Second))
	}
	if err != nil {
		return err
	}
	s.sent.bytes += int64(size)
	s.wait.Add(waited.Seconds())
	s.bytes.Add(float64(size))
	s.jobBytes.Add(float64(size))
	s.turn.Sent(int64(size))
	for _, t := range []*traffic{&s.reader.traffic, &s.node.readers.total} {
		t.bytes.Add(int64(size))
		t.client.Add(int64(waited))
	}
	return nil
}

// shard streams rows in row order, in the chunks in which they are stored.
func (s *sender) shard(l admitted, p *rows.Projection) error {
	rows := l.ticket.Rows
	return s.between(l, p, rows[0]-l.ticket.Bounds[0], rows[1]-l.ticket.Bounds[0])
}

// between streams the node's own rows [lo, hi).
func (s *sender) between(l admitted, p *rows.Projection, lo, hi int64) error {
	for lo < hi {
		var message rows.Message
		err := s.make(func() (err error) {
			for message, err = range l.rows.Range(p, lo, hi) {
				break
			}
			return err
		})
		if err != nil {
			return refusal(err, "read rows %d to %d", lo, hi)
		}
		lo += int64(message.Rows)
		if err := s.batch(message); err != nil {
			return err
		}
	}
	return nil
}

// maxTakeBytes is the maximum length of the batch that answers a batch of row numbers.
const maxTakeBytes = 1 << 30

// scratch estimates the memory for gathering rows by number: the position of each, in the table and in every column.
func scratch(p *rows.Projection, rows int) int64 { return int64(rows) * int64(32+32*p.Nodes()) }

// take answers one batch of the node's own row numbers with one batch of rows.
func (s *sender) take(l admitted, p *rows.Projection, asked exchange.Rows) error {
	message, err := s.gatherAsked(l, p, asked)
	if err != nil {
		return err
	}
	defer s.turn.Release() // the next request may take long
	return s.batch(message)
}

// make calls work, which makes a message, in the stream's turn. It calls it again as long as there is too little memory, and the stream
// has no turn while it waits for memory.
func (s *sender) make(work func() error) error {
	return s.node.withMemory(s.stream.Context(), func() error { return s.inTurn(work) })
}

// gather makes a message of rows like Gather, waiting until there is memory for it.
func (s *sender) gather(l admitted, p *rows.Projection, runs []rows.Run, count, most int) (message rows.Message, left []rows.Run, err error) {
	err = s.make(func() (err error) {
		message, left, err = l.rows.Gather(p, runs, count, most)
		return err
	})
	return message, left, err
}

// gatherAsked makes a message of rows in the requested order.
func (s *sender) gatherAsked(l admitted, p *rows.Projection, asked exchange.Rows) (rows.Message, error) {
	need := scratch(p, asked.Len())
	if err := s.node.withMemory(s.stream.Context(), func() error { return s.memory.Reserve(need) }); err != nil {
		return rows.Message{}, refusal(err, "exchange: %d rows: ask for fewer at a time", asked.Len())
	}
	defer s.memory.Release(need)
	runs, err := l.runs(asked)
	if err != nil {
		return rows.Message{}, err
	}
	message, left, err := s.gather(l, p, runs, len(runs), maxTakeBytes)
	if err != nil {
		return rows.Message{}, refusal(err, "exchange: %d rows: ask for fewer at a time", len(runs))
	}
	if len(left) > 0 {
		need := float64(message.BodyLen) / float64(max(message.Rows, 1)) * float64(len(runs))
		message.Release()
		return rows.Message{}, status.Errorf(codes.ResourceExhausted, "exchange: %d rows: ask for fewer at a time: needed about %.0f bytes, one batch may have %d", len(runs), need, maxTakeBytes)
	}
	return message, nil
}
