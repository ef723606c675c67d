// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/fair"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/exchange"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/transport"
)

// sender sends one stream's messages, within the memory reserved for them, and reports them to its observers.
type sender struct {
	Lent
	stream    grpc.ServerStream
	server    *Server
	turn      *fair.Stream
	observers observers
	memory    *offheap.Allowance
	most      int64         // maximum bytes of a message, unless a single row is longer
	loading   time.Duration // that the next message has waited for the load
	begin     time.Time     // when the node started working on the next message
	waiting   atomic.Int64  // since when the client has not read the message being sent, in Unix nanoseconds; 0: no message is being sent
	shares    sharing
	shed      atomic.Bool // it was ended to free memory for others
	revoked   atomic.Bool // it was ended since its reader may not read any more
}

const (
	// streamFraction is the divisor of the free memory that bounds a new stream's messages, between leastBytes and 4 MiB: the more
	// streams there are, the shorter the batches of the next one, so that idle streams leave memory to others.
	streamFraction = 64
	mostStream     = 4 << 20
	// slowest is the rate in bytes per second below which a client counts as not reading a long message.
	slowest = 1 << 20
)

// answer answers a call with the rows that it was lent: it adds a stream to the ticket's job, reserves memory for it and sends the
// schema, and then send sends the rows.
func (srv *Server) answer(lent Lent, stream grpc.ServerStream, send func(*sender) error) (err error) {
	s := &sender{Lent: lent, stream: stream, server: srv, begin: time.Now()}
	defer func() {
		if lent.Early != nil && s.Rows != nil {
			s.Rows.Release() // loaded meanwhile
		}
	}()
	job := jobOf(stream.Context(), lent.Ticket)
	if err := s.joinJob(job); err != nil {
		return err
	}
	if err := s.allow(); err != nil {
		s.turn.Leave()
		return refusal(err, "no memory for another stream")
	}
	defer s.memory.Close()
	s.observers = srv.observe(s, lent.Ticket, job)
	defer func() {
		if s.revoked.Load() {
			err = cmp.Or(srv.cfg.Access.Permits(lent.Ticket.Reader), err)
		}
		s.observers.end(err)
	}()
	s.Columns = s.Columns.Within(s.memory)
	s.share()
	defer s.shares.done()
	if err := s.frame(protocol.NewFrame(rows.SchemaHeader(s.Columns.Schema()), nil, nil, 0, nil), sent{}); err != nil {
		return err
	}
	return send(s)
}

// allow reserves the memory for the stream's messages.
func (s *sender) allow() error {
	messages, requests := int64(1), int64(0)
	if s.server.cfg.Transport == transport.GRPC { // one is being sent while the next one is gathered
		messages = 2
		if s.Ticket.Kind == protocol.Take {
			requests = transport.MaxRows
		}
	}
	return s.server.withMemory(s.stream.Context(), func() (err error) {
		clients := s.server.cfg.Budget.Clients()
		s.most = min(max(clients.Free()/streamFraction, leastBytes), mostStream)
		s.most = 1 << (bits.Len64(uint64(s.most)) - 1) // buffers have powers of two as sizes
		s.memory, err = clients.Allow(messages*s.most + requests)
		return err
	})
}

// refusal returns the status for an error: its own if it is one, RESOURCE_EXHAUSTED with the bytes needed and available, or INTERNAL.
func refusal(err error, format string, args ...any) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	code := codes.Internal
	var full *offheap.ExhaustedError
	if errors.As(err, &full) {
		code = codes.ResourceExhausted
	}
	return status.Errorf(code, "%s: %v", fmt.Sprintf(format, args...), err)
}

// batch sends one record batch, with the time that the node worked on it.
func (s *sender) batch(m rows.Message) error {
	busy := time.Since(s.begin)
	metadata, err := json.Marshal(protocol.BatchMetadata{Busy: busy.Microseconds(), Load: s.loading.Microseconds()})
	if err != nil {
		m.Release()
		return status.Errorf(codes.Internal, "encode metadata: %v", err)
	}
	what := sent{rows: int64(m.Rows), work: busy}
	var frame *protocol.Frame
	if m.Placed {
		frame, what.bytes = s.inSlot(m, metadata)
	} else {
		frame = protocol.NewFrame(m.Header, metadata, m.Body, m.BodyLen, m.Release)
	}
	if err := s.frame(frame, what); err != nil {
		return err
	}
	s.begin, s.loading = time.Now(), 0
	return nil
}

// frame sends a frame with what m says. It blocks while the client does not read what the transport has to send, which bounds a stream's
// memory.
func (s *sender) frame(f *protocol.Frame, m sent) error {
	m.bytes += int64(f.Size())
	err := s.whileClientReads(m.bytes, func() error { return transport.Send(s.stream, f) })
	if err == nil {
		s.observers.message(m)
	}
	return err
}

// whileClientReads calls wait, which ends when the client has read something. If the client does not in the time for a message of some bytes,
// the stream is ended to free its memory.
func (s *sender) whileClientReads(bytes int64, wait func() error) error {
	begin := time.Now()
	timeout := s.server.cfg.SendTimeout + time.Duration(bytes)*time.Second/slowest
	end := time.AfterFunc(timeout, func() { transport.Cancel(s.stream.Context()) })
	s.waiting.Store(begin.UnixNano())
	err := wait()
	s.waiting.Store(0)
	s.observers.wait(forClient, time.Since(begin))
	if s.shed.Load() {
		return status.Error(codes.Unavailable, "the client did not read, and others needed the memory: ask the head again, and read on from there")
	}
	if inTime := end.Stop(); !inTime {
		return status.Errorf(codes.Unavailable, "the client did not read a message of %d bytes within %s: ask the head again, and read on from there", bytes, timeout.Round(time.Second))
	}
	return err
}

// shard streams rows in row order, in the chunks in which they are stored.
func (s *sender) shard() error {
	first, ahead := s.Ticket.Bounds[0], newAhead(s.Rows)
	defer ahead.wait()
	for lo, hi := s.Ticket.Rows[0]-first, s.Ticket.Rows[1]-first; lo < hi; {
		ahead.of([]rows.Run{{First: uint64(lo), Rows: uint64(hi - lo)}})
		var message rows.Message
		columns, err := s.columns()
		if err != nil {
			return err
		}
		err = s.make(func() (err error) {
			for message, err = range s.Rows.Range(columns, lo, hi) {
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

// take answers one batch of the node's own row numbers with one batch of rows.
func (s *sender) take(asked exchange.Rows) error {
	message, err := s.gatherAsked(asked)
	if err != nil {
		return err
	}
	defer s.turn.Release() // the next request may take long
	return s.batch(message)
}

// make calls work, which makes a message, in the stream's turn. It calls it again as long as there is too little memory, and the stream
// has no turn while it waits for memory.
func (s *sender) make(work func() error) error {
	return s.server.withMemory(s.stream.Context(), func() error { return s.inTurn(work) })
}

// gather makes a message of rows like Gather, waiting until there is memory for it.
func (s *sender) gather(runs []rows.Run, count, most int) (message rows.Message, left []rows.Run, err error) {
	in, found, done, err := s.await(runs, count)
	if err != nil {
		return message, nil, err
	}
	defer done()
	message, left, err = s.gatherFrom(in, found, count, most)
	if in != s.Rows && err == nil {
		left = withoutRows(runs, message.Rows)
	}
	return message, left, err
}

// gatherFrom is gather for rows that are in memory, or that are read for it.
func (s *sender) gatherFrom(in *rows.Rows, runs []rows.Run, count, most int) (message rows.Message, left []rows.Run, err error) {
	columns, err := s.columns()
	if err != nil {
		return message, nil, err
	}
	err = s.make(func() (err error) {
		message, left, err = in.Gather(columns, runs, count, most)
		return err
	})
	return message, left, err
}

// holding returns rows with those of runs in memory, which the caller releases by calling done, and the runs in their numbers: as loaded, waiting
// for that, or read from files.
func (s *sender) holding(runs []rows.Run, count int) (in *rows.Rows, found []rows.Run, done func(), err error) {
	if s.Sweep == nil || len(runs) == 0 {
		return s.await(runs, count)
	}
	return s.collected(runs)
}

// collected does what holding does, for rows that are read from files.
func (s *sender) collected(runs []rows.Run) (in *rows.Rows, found []rows.Run, done func(), err error) {
	part, done, err := s.collect(runs)
	if err != nil {
		return nil, nil, nil, err
	}
	return part.Rows, part.Runs, done, nil
}

// gatherAsked makes a message of rows in the requested order.
func (s *sender) gatherAsked(asked exchange.Rows) (rows.Message, error) {
	need := int64(asked.Len()) * int64(32+32*s.Columns.Nodes()) // the position of each row, in the table and in every column
	if err := s.server.withMemory(s.stream.Context(), func() error { return s.memory.Reserve(need) }); err != nil {
		return rows.Message{}, refusal(err, "exchange: %d rows: ask for fewer at a time", asked.Len())
	}
	defer s.memory.Release(need)
	runs, err := s.runs(asked)
	if err != nil {
		return rows.Message{}, err
	}
	from, runs, done, err := s.holding(runs, asked.Len())
	if err != nil {
		return rows.Message{}, err
	}
	defer done()
	message, left, err := s.gatherFrom(from, runs, asked.Len(), maxTakeBytes)
	if err != nil {
		return rows.Message{}, refusal(err, "exchange: %d rows: ask for fewer at a time", asked.Len())
	}
	if len(left) > 0 {
		need := float64(message.BodyLen) / float64(max(message.Rows, 1)) * float64(asked.Len())
		message.Release()
		return rows.Message{}, status.Errorf(codes.ResourceExhausted, "exchange: %d rows: ask for fewer at a time: needed about %.0f bytes, one batch may have %d", asked.Len(), need, maxTakeBytes)
	}
	return message, nil
}
