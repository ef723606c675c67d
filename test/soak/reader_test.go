// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package soak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/protocol"
)

// inexcusable is an error that no fault excuses: wrong rows, or a response that contradicts itself.
type inexcusable struct{ text string }

func (w inexcusable) Error() string { return w.text }

func inexcusablef(format string, values ...any) error {
	return inexcusable{fmt.Sprintf(format, values...)}
}

// reader is an honest client. It reads random shares, epochs and rows, and compares each row with the table.
type reader struct {
	host   *host
	truth  *truth
	random *rand.Rand
	count  counts
}

// counts are the numbers of complete, failed and resumed reads, and of rows.
type counts struct {
	whole, broken, resumed, rows atomic.Int64
}

// truth is what the cache of a lake may serve. It is safe for concurrent use.
type truth struct {
	lake         *lake
	fingerprints [8]atomic.Pointer[string] // by version
}

// version finds the version of the table that a response is about, and checks the response's metadata.
func (t *truth) version(m protocol.InfoMetadata) (version, error) {
	for i, v := range t.lake.versions {
		if v.snapshot != m.Dataset.Snapshot {
			continue
		}
		if int(m.Rows) != len(v.rows) {
			return v, inexcusablef("version %d: %d rows, want %d", i+1, m.Rows, len(v.rows))
		}
		if !t.fingerprints[i].CompareAndSwap(nil, &m.Dataset.Fingerprint) && *t.fingerprints[i].Load() != m.Dataset.Fingerprint {
			return v, inexcusablef("version %d: fingerprint %s, before %s", i+1, m.Dataset.Fingerprint, *t.fingerprints[i].Load())
		}
		var next int64
		for _, b := range m.Nodes {
			if b[0] != next || b[1] < b[0] {
				return v, inexcusablef("nodes: %v, want ranges that follow each other", m.Nodes)
			}
			next = b[1]
		}
		if next != m.Rows {
			return v, inexcusablef("nodes: %v, want all of %d rows", m.Nodes, m.Rows)
		}
		return v, nil
	}
	return version{}, inexcusablef("an answer about snapshot %d, which the table never had", m.Dataset.Snapshot)
}

// answer is a FlightInfo and its decoded metadata.
type answer struct {
	info     *flight.FlightInfo
	metadata protocol.InfoMetadata
	version  version
}

// dial connects to host:port until ctx ends.
func (r *reader) dial(ctx context.Context, address string) (flight.FlightServiceClient, error) {
	conn, err := grpc.NewClient(address,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) { return r.host.dial(ctx, address) }),
		grpc.WithDisableServiceConfig(), grpc.WithDisableRetry(),
	)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { conn.Close() })
	return flight.NewFlightServiceClient(conn), nil
}

// ask sends GetFlightInfo to the head.
func (r *reader) ask(ctx context.Context, request map[string]any) (answer, error) {
	d := &flight.FlightDescriptor{Type: flight.DescriptorPATH}
	if request["kind"] == "path" {
		d.Path = []string{fmt.Sprint(request["index"]), fmt.Sprint(request["total"])}
	} else {
		request["v"] = 1
		cmd, err := json.Marshal(request)
		if err != nil {
			return answer{}, err
		}
		d = &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: cmd}
	}
	client, err := r.dial(ctx, headAddr)
	if err != nil {
		return answer{}, err
	}
	a := answer{}
	if a.info, err = client.GetFlightInfo(ctx, d); err != nil {
		return a, err
	}
	if err := json.Unmarshal(a.info.GetAppMetadata(), &a.metadata); err != nil {
		return a, inexcusablef("app_metadata: %v", err)
	}
	a.version, err = r.truth.version(a.metadata)
	return a, err
}

// source reads the rows of one endpoint.
type source struct {
	reader *reader
	next   func() (arrow.RecordBatch, error)
	batch  arrow.RecordBatch // the current batch
	at     int               // number of its rows that were checked
}

// open starts reading an endpoint.
func (r *reader) open(ctx context.Context, e *flight.FlightEndpoint) (*source, error) {
	client, err := r.dialEndpoint(ctx, e)
	if err != nil {
		return nil, err
	}
	stream, err := client.DoGet(ctx, e.GetTicket())
	if err != nil {
		return nil, err
	}
	batches, err := flight.NewRecordReader(stream)
	if err != nil {
		return nil, err
	}
	return &source{reader: r, next: batches.Read}, nil
}

func (r *reader) dialEndpoint(ctx context.Context, e *flight.FlightEndpoint) (flight.FlightServiceClient, error) {
	if len(e.GetLocation()) != 1 {
		return nil, inexcusablef("an endpoint with %d locations, want 1", len(e.GetLocation()))
	}
	return r.dial(ctx, strings.TrimPrefix(e.GetLocation()[0].GetUri(), "grpc://"))
}

// want checks that the next row is the given one.
func (s *source) want(what row, where string) error {
	for s.batch == nil || s.at == int(s.batch.NumRows()) {
		batch, err := s.next()
		if errors.Is(err, io.EOF) {
			return inexcusablef("%s: the stream ended cleanly in front of row %v", where, what)
		}
		if err != nil {
			return err
		}
		s.batch, s.at = batch, 0
	}
	if err := what.check(s.batch, s.at); err != nil {
		return inexcusablef("%s: %v", where, err)
	}
	s.at++
	s.reader.count.rows.Add(1)
	return nil
}

// end checks that there are no more rows.
func (s *source) end(where string) error {
	if s.batch != nil && s.at < int(s.batch.NumRows()) {
		return inexcusablef("%s: %d rows too many", where, int(s.batch.NumRows())-s.at)
	}
	batch, err := s.next()
	if err == nil {
		return inexcusablef("%s: %d rows too many", where, batch.NumRows())
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// check compares the values of a row of a batch. Columns that the batch lacks were not requested.
func (r row) check(batch arrow.RecordBatch, at int) error {
	want := r.values()
	for i, field := range batch.Schema().Fields() {
		var got any
		switch column := batch.Column(i).(type) {
		case *array.Int64:
			got = int(column.Value(at))
		case *array.Float64:
			got = column.Value(at)
		case *array.String:
			got = column.Value(at)
		default:
			return fmt.Errorf("column %s is of type %s", field.Name, field.Type)
		}
		if batch.Column(i).IsNull(at) {
			got = nil
		}
		if got != want[field.Name] {
			return fmt.Errorf("row %v: %s is %v, want %v", r, field.Name, got, want[field.Name])
		}
	}
	return nil
}

// share reads a share of the rows.
func (r *reader) share(ctx context.Context, index, total int) error {
	request := map[string]any{"kind": "path", "index": index, "total": total}
	if r.random.IntN(2) == 0 {
		request["kind"], request["columns"] = "shard", []string{"text", "id"}
	}
	a, err := r.ask(ctx, request)
	if err != nil {
		return err
	}
	where := fmt.Sprintf("share %d of %d", index, total)
	n := len(a.version.rows)
	rows := a.version.rows[index*n/total : (index+1)*n/total]
	if a.info.GetTotalRecords() != int64(len(rows)) {
		return inexcusablef("%s: total_records %d, want %d", where, a.info.GetTotalRecords(), len(rows))
	}
	for _, e := range a.info.GetEndpoint() {
		s, err := r.open(ctx, e)
		if err != nil {
			return err
		}
		bounds, err := a.boundsOf(e)
		if err != nil {
			return err
		}
		count := min(int(bounds[1]), (index+1)*n/total) - max(int(bounds[0]), index*n/total)
		for _, want := range rows[:count] {
			if err := s.want(want, where); err != nil {
				return err
			}
		}
		rows = rows[count:]
		if err := s.end(where); err != nil {
			return err
		}
	}
	if len(rows) > 0 {
		return inexcusablef("%s: %d rows are of no endpoint", where, len(rows))
	}
	return nil
}

// nodeOf returns the index of an endpoint's data node.
func (a answer) nodeOf(e *flight.FlightEndpoint) (int, error) {
	var m protocol.EndpointMetadata
	if err := json.Unmarshal(e.GetAppMetadata(), &m); err != nil || m.Node < 0 || m.Node >= len(a.metadata.Nodes) {
		return 0, inexcusablef("an endpoint with app_metadata %q", e.GetAppMetadata())
	}
	return m.Node, nil
}

// boundsOf returns the rows of an endpoint's data node.
func (a answer) boundsOf(e *flight.FlightEndpoint) (assign.Bounds, error) {
	node, err := a.nodeOf(e)
	if err != nil {
		return assign.Bounds{}, err
	}
	return a.metadata.Nodes[node], nil
}

// rowSchema is the schema of the requests in an exchange.
var rowSchema = arrow.NewSchema([]arrow.Field{{Name: "row", Type: arrow.PrimitiveTypes.Int64}}, nil)

// take requests random rows, a few times over one exchange.
func (r *reader) take(ctx context.Context) error {
	a, err := r.ask(ctx, map[string]any{"kind": "take"})
	if err != nil {
		return err
	}
	if len(a.info.GetEndpoint()) == 0 {
		return nil
	}
	e := a.info.GetEndpoint()[r.random.IntN(len(a.info.GetEndpoint()))]
	bounds, err := a.boundsOf(e)
	if err != nil || bounds.Len() == 0 {
		return err
	}
	client, err := r.dialEndpoint(ctx, e)
	if err != nil {
		return err
	}
	stream, err := client.DoExchange(ctx)
	if err != nil {
		return err
	}
	writer := flight.NewRecordWriter(stream, ipc.WithSchema(rowSchema))
	writer.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: e.GetTicket().GetTicket()})
	var batches *flight.Reader
	for range 1 + r.random.IntN(3) {
		rows := make([]int64, 1+r.random.IntN(20))
		for i := range rows {
			rows[i] = bounds[0] + r.random.Int64N(bounds.Len())
		}
		if err := write(writer, rows); err != nil {
			return statusOf(stream, err)
		}
		if batches == nil {
			if batches, err = flight.NewRecordReader(stream); err != nil {
				return err
			}
		}
		s := &source{reader: r, next: batches.Read}
		for _, index := range rows {
			if err := s.want(a.version.rows[index], fmt.Sprintf("take of %v", rows)); err != nil {
				return err
			}
		}
		if s.at != int(s.batch.NumRows()) {
			return inexcusablef("take of %v: %d rows", rows, s.batch.NumRows())
		}
	}
	if err := stream.CloseSend(); err != nil {
		return err
	}
	return (&source{reader: r, next: batches.Read}).end("take")
}

// statusOf returns the status of a stream that ended, which caused the given send error.
func statusOf(stream flight.FlightService_DoExchangeClient, err error) error {
	if _, ended := stream.Recv(); ended != nil {
		return ended
	}
	return err
}

func write(w *flight.Writer, rows []int64) error {
	builder := array.NewInt64Builder(memory.DefaultAllocator)
	builder.AppendValues(rows, nil)
	batch := array.NewRecordBatch(rowSchema, []arrow.Array{builder.NewArray()}, int64(len(rows)))
	return w.Write(batch)
}

// passing reports whether an error may be the consequence of a fault.
func passing(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.FailedPrecondition, codes.Unauthenticated:
		return true
	}
	return false
}

// once does one random read.
func (r *reader) once(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	err := r.read(ctx)
	if ctx.Err() != nil && status.Code(err) == codes.Canceled { // its connection was closed before the call saw the time limit
		return status.FromContextError(ctx.Err()).Err()
	}
	return err
}

func (r *reader) read(ctx context.Context) error {
	switch r.random.IntN(3) {
	case 0:
		total := 1 + r.random.IntN(7)
		return r.share(ctx, r.random.IntN(total), total)
	case 1:
		return r.epoch(ctx)
	default:
		return r.take(ctx)
	}
}

// run reads until ctx ends. It returns the first error that no fault excuses.
func (r *reader) run(ctx context.Context) error {
	for ctx.Err() == nil {
		err := r.once(ctx)
		switch {
		case err == nil:
			r.count.whole.Add(1)
		case errors.As(err, new(inexcusable)):
			return err
		case ctx.Err() != nil: // it was told to stop
		case passing(err), status.Code(err) == codes.DeadlineExceeded:
			r.count.broken.Add(1)
		default:
			return err
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(r.random.IntN(2500)) * time.Millisecond):
		}
	}
	return nil
}
