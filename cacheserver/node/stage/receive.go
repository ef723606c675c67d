// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/exchange"
	"github.com/kubeflow/datacache/cacheserver/put/incoming"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/spill"
	"github.com/kubeflow/datacache/cacheserver/transport"
)

const (
	// mostDetained is how many bytes of messages may stay in use for the sake of rows in them that are not in a chunk yet.
	mostDetained = rows.TargetBytes + 1<<20
	// streamMemory is the memory of a stream besides the chunks: messages in use, with those kept for further ones, or copies of their rows.
	streamMemory = mostDetained + rows.TargetBytes
)

// Receive receives one part over a stream of DoPut and answers with its receipt. Until the client ends the stream, nothing is kept. Errors are
// gRPC statuses.
func (s *Stage) Receive(stream grpc.ServerStream) error {
	first, err := receive(stream, nil)
	if errors.Is(err, io.EOF) {
		return status.Error(codes.InvalidArgument, "put: the stream has no message; the first one has the command")
	}
	if err != nil {
		return err
	}
	command, err := protocol.ParsePutCommand(first.Command)
	if err != nil {
		return err
	}
	var ticket protocol.PutTicket
	if err := s.cfg.Signer.Open(command.Ticket, &ticket); err != nil {
		return status.Errorf(status.Code(err), "ticket: %s", status.Convert(err).Message())
	}
	guard := s.cfg.Access
	if ticket.Copy != "" { // only data nodes make such tickets
		guard = nil
	}
	defer guard.OnChange(func() {
		if guard.Put(stream.Context(), ticket.Writer) != nil {
			transport.Cancel(stream.Context())
		}
	})()
	if err := guard.Put(stream.Context(), ticket.Writer); err != nil {
		return err
	}
	if command.Part >= ticket.Parts {
		return status.Errorf(codes.InvalidArgument, "part: %d, want a number below %d", command.Part, ticket.Parts)
	}
	node := command.Part * ticket.Nodes / ticket.Parts
	if isCopy := ticket.Copy != "" && (node+1)%ticket.Nodes == s.cfg.Node; node != s.cfg.Node && !isCopy {
		return status.Errorf(codes.FailedPrecondition, "part: %d belongs to data node %d, this is data node %d: put.status has their addresses", command.Part, node, s.cfg.Node)
	}
	p, err := s.wait(stream.Context(), ticket.Put)
	if err != nil {
		return err
	}
	defer context.AfterFunc(p.ended, func() { transport.Cancel(stream.Context()) })()
	made, err := s.receivePart(stream, p, command, ticket, first)
	if err != nil {
		if p.ended.Err() != nil {
			return errFreed
		}
		return cmp.Or(guard.Put(stream.Context(), ticket.Writer), err)
	}
	return s.answer(stream, p, made)
}

// received is a message with the memory that it is in.
type received struct {
	exchange.Message
	raw protocol.Raw
}

// receive reads the next message into memory, if there is enough, io.EOF after the last one.
func receive(stream grpc.ServerStream, memory protocol.Raw) (received, error) {
	if err := stream.RecvMsg(&memory); err != nil {
		return received{}, err
	}
	m, err := exchange.ParseMessage(memory)
	if err != nil {
		return received{}, status.Errorf(codes.InvalidArgument, "put: %v", err)
	}
	return received{m, memory}, nil
}

// intake turns the messages of a part into chunks.
type intake struct {
	put     *put
	builder *rows.Builder
	content *rows.Content
	schema  bool // it has come
	end     protocol.PutEnd

	used  []protocol.Raw // messages that the builder may refer to, in the order of their rows
	spare []protocol.Raw // for further messages: their memory is not made for each, and not left to the garbage collector
}

// receivePart receives a part and records it.
func (s *Stage) receivePart(stream grpc.ServerStream, p *put, command protocol.PutCommand, ticket protocol.PutTicket, first received) (*part, error) {
	if p.refused != nil {
		return nil, refusal(p.refused)
	}
	if !p.arena.Retain() {
		return nil, errFreed
	}
	defer p.arena.Release()
	budget, memory := p.arena.Budget(), streamMemory+p.layout.IntakeMemory()
	if err := budget.Reserve(memory); err != nil {
		return nil, refusal(err)
	}
	defer budget.Release(memory)
	in := &intake{put: p, builder: rows.NewBuilder(p.layout, p.arena, 0), content: p.layout.NewContent()}
	var made *part
	added := false
	defer func() { // also after a panic
		switch {
		case added:
		case made != nil:
			made.discard()
		default:
			in.builder.Discard()
		}
	}()
	sealed, err := in.all(stream, first)
	if err == nil {
		err = in.whole(command.End)
	}
	if err != nil {
		return nil, refusal(err)
	}
	sum := in.content.Sum()
	hash := hex.EncodeToString(sum[:])
	if ticket.Copy != "" && ticket.Copy != hash {
		return nil, status.Errorf(codes.DataLoss, "put: the copy of part %d has the hash %s, want %s", command.Part, hash, ticket.Copy)
	}
	if made, err = p.newPart(protocol.PutPart{Part: command.Part, Attempt: command.Attempt, Rows: sealed.Rows, Bytes: in.builder.Reserved(), Hash: hash}, sealed.Chunks); err != nil {
		return nil, refusal(err)
	}
	if err := s.store(p, made, sealed); err != nil {
		return nil, refusal(err)
	}
	if ticket.Copy == "" {
		if err := s.copied(stream.Context(), p, made, ticket.Addresses); err != nil {
			return nil, err
		}
	}
	added = true
	return s.add(p, made, ticket.Copy != "")
}

// all receives messages until the client ends the stream.
func (in *intake) all(stream grpc.ServerStream, m received) (rows.Sealed, error) {
	for {
		if len(m.Header) > 0 { // otherwise it has only application metadata
			if err := in.message(m); err != nil {
				return rows.Sealed{}, err
			}
		}
		if len(m.Metadata) > 0 && json.Unmarshal(m.Metadata, &in.end) != nil {
			in.end = protocol.PutEnd{} // it is the application's own
		}
		var err error
		if m, err = receive(stream, in.memory()); errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return rows.Sealed{}, err
		}
	}
	if !in.schema {
		return rows.Sealed{}, status.Error(codes.InvalidArgument, "put: the stream has no schema")
	}
	return in.builder.Finish()
}

// whole returns an error if the client has ended the stream before all rows were sent.
func (in *intake) whole(end string) error {
	switch rows := in.content.Rows(); {
	case in.end.Rows == nil && end != protocol.EndOpen:
		return status.Errorf(codes.InvalidArgument, `put: the stream ended after %d rows without their number, so it may have been cut off: send the app_metadata {"rows":%d} last, in pyarrow by writer.write_metadata`, rows, rows)
	case in.end.Rows != nil && *in.end.Rows != rows:
		return status.Errorf(codes.InvalidArgument, "put: %d rows came, the last message says %d", rows, *in.end.Rows)
	}
	return nil
}

func (in *intake) message(m received) error {
	if exchange.IsSchema(m.Message) {
		return in.readSchema(m.Message)
	}
	if !in.schema {
		return status.Error(codes.InvalidArgument, "put: rows before the schema")
	}
	batch, err := readBatch(in.put.layout, m.Message)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "put: %v", err)
	}
	defer batch.Release()
	in.content.Add(batch)
	if err := in.builder.Append(batch, nil); err != nil {
		return err
	}
	if batch.NumRows() > 0 {
		return in.keep(m.raw)
	}
	return nil
}

// keep notes that the builder has got the rows of a message, and takes back the messages that it does not refer to any more.
func (in *intake) keep(raw protocol.Raw) error {
	in.used = append(in.used, raw)
	if over := len(in.used) - in.builder.Held(); over > 0 {
		in.spare = append(in.spare, in.used[:over]...)
		in.used = slices.Delete(in.used, 0, over)
	}
	used := sizeOf(in.used)
	if used > mostDetained {
		in.used, in.spare = nil, nil
		return in.builder.Detach()
	}
	for len(in.spare) > 0 && used+sizeOf(in.spare) > streamMemory {
		in.spare = slices.Delete(in.spare, 0, 1)
	}
	return nil
}

func sizeOf(messages []protocol.Raw) (n int) {
	for _, m := range messages {
		n += cap(m)
	}
	return n
}

// memory takes a message from the spare ones, nil if there is none.
func (in *intake) memory() protocol.Raw {
	if len(in.spare) == 0 {
		return nil
	}
	last := len(in.spare) - 1
	memory := in.spare[last]
	in.spare = in.spare[:last]
	return memory
}

// readSchema checks the schema of the stream.
func (in *intake) readSchema(m exchange.Message) error {
	in.schema = bytes.Equal(m.Header, in.put.Schema)
	if in.schema {
		return nil
	}
	memory, err := incoming.Memory(m.Header)
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "put: %v", err)
	}
	budget := in.put.arena.Budget()
	if err := budget.Reserve(memory); err != nil {
		return err
	}
	defer budget.Release(memory)
	schema, err := rows.ParseSchema(m.Header)
	if err == nil {
		err = in.put.layout.Match(schema)
	}
	if err != nil {
		return status.Errorf(codes.InvalidArgument, "put: %v", err)
	}
	in.schema = true
	return nil
}

// readBatch returns the record batch of a message, all of which is checked. It refers to the message's body.
func readBatch(layout *rows.Layout, m exchange.Message) (arrow.RecordBatch, error) {
	c, err := exchange.ReadColumns(m)
	if err != nil {
		return nil, err
	}
	f := rows.Foreign{Rows: c.Rows, Lengths: make([]int64, len(c.Nodes)), Nulls: make([]int64, len(c.Nodes)), Buffers: c.Buffers}
	for i, n := range c.Nodes {
		f.Lengths[i], f.Nulls[i] = n.Length, n.Nulls
	}
	batch, err := layout.Batch(f)
	if err != nil {
		return nil, err
	}
	if err := checkText(batch); err != nil {
		batch.Release()
		return nil, err
	}
	return batch, nil
}

// answer sends the receipt of a part, once the head knows of the part.
func (s *Stage) answer(stream grpc.ServerStream, p *put, made *part) error {
	select {
	case <-made.known:
	case <-p.ended.Done():
		return errFreed
	case <-stream.Context().Done():
		return status.FromContextError(stream.Context().Err()).Err()
	}
	s.mu.Lock()
	of := made.PutPart
	s.mu.Unlock()
	receipt, err := s.cfg.Signer.Sign(protocol.Receipt{Put: p.ID, PutPart: of})
	if err != nil {
		return err
	}
	text, err := json.Marshal(protocol.PutResult{PutPart: of, Receipt: receipt})
	if err != nil {
		return status.Errorf(codes.Internal, "encode the receipt: %v", err)
	}
	return stream.SendMsg(&flight.PutResult{AppMetadata: text})
}

// refusal returns the status for an error.
func refusal(err error) error {
	var full *offheap.ExhaustedError
	var disk *spill.FullError
	switch {
	case errors.As(err, &full), errors.As(err, &disk):
		return status.Errorf(codes.ResourceExhausted, "put: %v", err)
	case isStatus(err):
		return err
	}
	return status.Errorf(codes.InvalidArgument, "put: %v", err)
}

func isStatus(err error) bool {
	_, ok := status.FromError(err)
	return ok && err != nil
}

// checkText checks that all strings are valid UTF-8.
func checkText(batch arrow.RecordBatch) error {
	for i, f := range batch.Schema().Fields() {
		if err := textOf(batch.Column(i).Data()); err != nil {
			return fmt.Errorf("column %q: %w", f.Name, err)
		}
	}
	return nil
}
