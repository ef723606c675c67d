// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/epochtest"
)

// window is a client's HTTP/2 window. It is fixed, so the server is blocked after that many bytes if the client stops reading.
const window = 64 << 10

// dial makes a separate connection to host:port, which is closed when ctx ends.
func dial(ctx context.Context, address string, options ...grpc.DialOption) (*grpc.ClientConn, error) {
	options = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(window),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64 << 20)),
	}, options...)
	conn, err := grpc.NewClient(address, options...)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	return conn, nil
}

// service returns a Flight client for host:port that works until ctx ends.
func service(ctx context.Context, t *testing.T, address string) flight.FlightServiceClient {
	t.Helper()
	conn, err := dial(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	return flight.NewFlightServiceClient(conn)
}

// shardOf requests share index of total, as the KEP's client does.
func shardOf(index, total int) *flight.FlightDescriptor {
	return &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{strconv.Itoa(index), strconv.Itoa(total)}}
}

// epochOf requests a rank's share of a shuffled epoch.
func epochOf(e epoch.Epoch, s epoch.Share) *flight.FlightDescriptor {
	cmd, err := json.Marshal(map[string]any{
		"v": 1, "kind": "epoch", "seed": e.Seed, "epoch": e.Number, "shuffle": e.Shuffle, "clump": e.Clump,
		"global_batch": e.GlobalBatch, "tail": e.Tail, "rank": s.Rank, "world": s.World, "worker": s.Worker, "workers": s.Workers, "start_step": s.StartStep,
	})
	if err != nil {
		panic(err) // numbers and strings can always be encoded
	}
	return &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: cmd}
}

// info sends one GetFlightInfo to the head.
func (c *cluster) info(ctx context.Context, d *flight.FlightDescriptor) (*flight.FlightInfo, error) {
	ctx, done := context.WithCancel(ctx) // done closes the connections
	defer done()
	conn, err := dial(ctx, c.headAddr)
	if err != nil {
		return nil, err
	}
	return flight.NewFlightServiceClient(conn).GetFlightInfo(ctx, d)
}

// refused asserts that the head answers UNAVAILABLE with a reason that contains the given text.
func (c *cluster) refused(reason string) {
	c.t.Helper()
	_, err := c.info(deadline.Context(c.t), shardOf(0, 1))
	wantStatus(c.t, err, codes.Unavailable, reason)
}

// wantStatus asserts a gRPC error's code and a part of its message.
func wantStatus(t *testing.T, err error, code codes.Code, message string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(status.Convert(err).Message(), message) {
		t.Fatalf("got %v, want %s with %q", err, code, message)
	}
}

// metadataOf decodes the dataset metadata of a response.
func metadataOf(info *flight.FlightInfo) (m protocol.InfoMetadata, err error) {
	err = json.Unmarshal(info.GetAppMetadata(), &m)
	return m, err
}

// nodeOf returns the index of an endpoint's data node.
func nodeOf(e *flight.FlightEndpoint) (int, error) {
	var m protocol.EndpointMetadata
	err := json.Unmarshal(e.GetAppMetadata(), &m)
	return m.Node, err
}

// stream reads the rows of one endpoint.
type stream struct {
	lake   *lake
	reader *flight.Reader
}

// open starts reading an endpoint over a separate connection, which lasts until ctx ends.
func (c *cluster) open(ctx context.Context, e *flight.FlightEndpoint) (*stream, error) {
	locations := e.GetLocation()
	if len(locations) != 1 {
		return nil, fmt.Errorf("an endpoint with %d locations, want 1", len(locations))
	}
	conn, err := dial(ctx, strings.TrimPrefix(locations[0].GetUri(), "grpc://"))
	if err != nil {
		return nil, err
	}
	data, err := flight.NewFlightServiceClient(conn).DoGet(ctx, e.GetTicket())
	if err != nil {
		return nil, err
	}
	reader, err := flight.NewRecordReader(data)
	if err != nil {
		return nil, err
	}
	return &stream{lake: c.lake, reader: reader}, nil
}

// next returns the ids of the next batch, io.EOF after a clean end.
func (s *stream) next() ([]int64, error) {
	if s.reader.Next() {
		return s.lake.check(s.reader.RecordBatch())
	}
	if err := s.reader.Err(); err != nil {
		return nil, err
	}
	return nil, io.EOF
}

// rest returns the ids up to the end.
func (s *stream) rest() ([]int64, error) {
	var ids []int64
	for {
		more, err := s.next()
		if errors.Is(err, io.EOF) {
			return ids, nil
		}
		if err != nil {
			return ids, err
		}
		ids = append(ids, more...)
	}
}

// shard reads a share by reading its endpoints one after the other.
func (c *cluster) shard(ctx context.Context, index, total int) ([]int64, error) {
	ctx, done := context.WithCancel(ctx) // done closes the connections
	defer done()
	info, err := c.info(ctx, shardOf(index, total))
	if err != nil {
		return nil, err
	}
	var ids []int64
	for _, e := range info.GetEndpoint() {
		s, err := c.open(ctx, e)
		if err != nil {
			return ids, err
		}
		more, err := s.rest()
		ids = append(ids, more...)
		if err != nil {
			return ids, err
		}
	}
	if int64(len(ids)) != info.GetTotalRecords() {
		return ids, wrongf("%d rows, the head promised %d", len(ids), info.GetTotalRecords())
	}
	return ids, nil
}

// wrongRows is the error for wrong rows, which no fault excuses.
type wrongRows struct{ text string }

func (w wrongRows) Error() string { return w.text }

func wrongf(format string, args ...any) error { return wrongRows{fmt.Sprintf(format, args...)} }

// epochReader reads a rank's sequence: the streams of all data nodes, merged in the order of the sequence.
type epochReader struct {
	want    []uint64        // row indices, in sequence order
	bounds  []assign.Bounds // by node
	streams map[int]*stream
	pending map[int][]int64
}

// epoch starts reading a rank's share of an epoch.
func (c *cluster) epoch(ctx context.Context, e epoch.Epoch, s epoch.Share) (*epochReader, error) {
	info, err := c.info(ctx, epochOf(e, s))
	if err != nil {
		return nil, err
	}
	m, err := metadataOf(info)
	if err != nil {
		return nil, err
	}
	e.Rows = uint64(m.Rows)
	read := &epochReader{bounds: m.Nodes, streams: map[int]*stream{}, pending: map[int][]int64{}}
	if read.want, err = epochtest.Rows(e, s); err != nil {
		return nil, err
	}
	for _, endpoint := range info.GetEndpoint() {
		node, err := nodeOf(endpoint)
		if err != nil {
			return nil, err
		}
		if read.streams[node], err = c.open(ctx, endpoint); err != nil {
			return nil, err
		}
	}
	return read, nil
}

// take reads the next n rows of the sequence and checks that they are the right ones. It returns their ids, and io.EOF after the last
// row if every stream ended cleanly.
func (e *epochReader) take(n int) ([]int64, error) {
	var ids []int64
	for ; n > 0; n-- {
		if len(e.want) == 0 {
			return ids, e.end()
		}
		row := int64(e.want[0])
		owner := slices.IndexFunc(e.bounds, func(b assign.Bounds) bool { return b[0] <= row && row < b[1] })
		if err := e.fill(owner); err != nil {
			return ids, err
		}
		if got := e.pending[owner][0]; got != row {
			return ids, wrongf("data node %d sent row %d where the sequence has %d", owner, got, row)
		}
		ids, e.want, e.pending[owner] = append(ids, row), e.want[1:], e.pending[owner][1:]
	}
	return ids, nil
}

// fill reads the next rows of a node that has more to send.
func (e *epochReader) fill(owner int) error {
	if e.streams[owner] == nil {
		return wrongf("no endpoint for data node %d, which has row %d", owner, e.want[0])
	}
	for len(e.pending[owner]) == 0 {
		more, err := e.streams[owner].next()
		if errors.Is(err, io.EOF) {
			return wrongf("the stream of data node %d ended cleanly, but row %d is missing", owner, e.want[0])
		}
		if err != nil {
			return err
		}
		e.pending[owner] = more
	}
	return nil
}

// end reads every stream to its end, where no more rows may follow.
func (e *epochReader) end() error {
	for owner, s := range e.streams {
		more, err := s.rest()
		if err != nil {
			return err
		}
		if more = append(e.pending[owner], more...); len(more) > 0 {
			return wrongf("data node %d sent rows %v after the sequence's end", owner, more)
		}
	}
	return io.EOF
}

// wholeEpoch reads an epoch from start to end.
func (c *cluster) wholeEpoch(ctx context.Context, e epoch.Epoch, s epoch.Share) ([]int64, error) {
	ctx, done := context.WithCancel(ctx) // done closes the connections
	defer done()
	read, err := c.epoch(ctx, e, s)
	if err != nil {
		return nil, err
	}
	ids, err := read.take(1 << 30)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return ids, err
}

// servesAll asserts that the cache serves every row of the table, in order, whole and in shares.
func (c *cluster) servesAll(shares int) {
	c.t.Helper()
	var joined []int64
	for i := range shares {
		ids, err := c.shard(deadline.Context(c.t), i, shares)
		if err != nil {
			c.t.Fatalf("shard %d of %d: %v", i, shares, err)
		}
		joined = append(joined, ids...)
	}
	if diff := cmp.Diff(c.lake.all(), joined, cmpopts.EquateEmpty()); diff != "" {
		c.t.Fatalf("rows of %d shares (-want +got):\n%s", shares, diff)
	}
}
