// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/source"
)

// The golden files are shared with test/conformance, which compares a running server with them.
const goldenDir = "../../test/golden/"

func golden(t *testing.T, name string, into any) {
	t.Helper()
	text, err := os.ReadFile(goldenDir + name)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, into); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
}

// goldenView returns the view of a ready cache whose rows are distributed to nodes as in bounds, with the given columns.
func goldenView(columns []string, bounds []assign.Bounds) *view {
	fields := make([]arrow.Field, len(columns))
	for i, name := range columns {
		fields[i] = arrow.Field{Name: name, Type: arrow.PrimitiveTypes.Int64}
	}
	v := &view{plan: &tablePlan{Plan: source.Plan{Schema: arrow.NewSchema(fields, nil)}}, places: &places{bounds: bounds, json: []byte("[]")}}
	for _, b := range bounds {
		v.rows += b.Len()
		v.filtered += b.Len()
		v.nodes = append(v.nodes, server{address: "host:1", rows: b.Len(), columnBytes: make([]int64, len(columns))})
	}
	return v
}

func TestGoldenDescriptors(t *testing.T) {
	var file struct {
		Dataset struct {
			Rows    int64
			Columns []string
		}
		Cases []struct {
			Name    string
			Path    []string
			Command json.RawMessage
			Base64  []byte
			Want    struct{ Code, Says string }
		}
	}
	golden(t, "wire_descriptors.json", &file)
	if len(file.Cases) < 50 {
		t.Fatalf("%d cases: is this the right file?", len(file.Cases))
	}
	v := goldenView(file.Dataset.Columns, []assign.Bounds{{0, file.Dataset.Rows}})
	for _, tt := range file.Cases {
		t.Run(tt.Name, func(t *testing.T) {
			d := &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: tt.Path}
			if tt.Path == nil {
				d = &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: append(tt.Base64, tt.Command...)}
			}
			request, err := protocol.ParseDescriptor(d)
			if err == nil {
				_, err = v.answer(request)
			}
			wanted := map[string]codes.Code{"OK": codes.OK, "INVALID_ARGUMENT": codes.InvalidArgument, "FAILED_PRECONDITION": codes.FailedPrecondition}
			if code, known := wanted[tt.Want.Code]; !known || status.Code(err) != code {
				t.Fatalf("ends in %v, want %s", err, tt.Want.Code)
			}
			if err != nil && !strings.Contains(err.Error(), tt.Want.Says) {
				t.Errorf("%q does not name %q", err, tt.Want.Says)
			}
		})
	}
}

func TestGoldenAnswers(t *testing.T) {
	type endpoint struct {
		Node int
		Rows []int64
	}
	var file struct {
		Dataset struct{ Columns []string }
		Cases   []struct {
			Nodes   []assign.Bounds
			Request json.RawMessage
			Want    struct {
				TotalRecords int64 `json:"total_records"`
				Endpoints    []endpoint
			}
		}
	}
	golden(t, "wire_answers.json", &file)
	if len(file.Cases) < 50 {
		t.Fatalf("%d cases: is this the right file?", len(file.Cases))
	}
	for i, tt := range file.Cases {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			command := `{"v":1,` + strings.TrimPrefix(string(tt.Request), "{") // the golden file omits the version
			request, err := protocol.ParseDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: []byte(command)})
			if err != nil {
				t.Fatal(err)
			}
			a, err := goldenView(file.Dataset.Columns, tt.Nodes).answer(request)
			if err != nil {
				t.Fatal(err)
			}
			got := []endpoint{}
			for _, s := range a.shares {
				got = append(got, endpoint{s.node, ticketRows(t, s.ticket)})
			}
			if diff := cmp.Diff(tt.Want.Endpoints, got); diff != "" || a.records != tt.Want.TotalRecords {
				t.Errorf("%s: %d records, want %d; endpoints (-want +got):\n%s", tt.Request, a.records, tt.Want.TotalRecords, diff)
			}
		})
	}
}

// ticketRows lists the rows that a data node must send for a ticket.
func ticketRows(t *testing.T, ticket protocol.Ticket) []int64 {
	t.Helper()
	rows := []int64{}
	if ticket.Kind == protocol.Shard {
		for row := ticket.Rows[0]; row < ticket.Rows[1]; row++ {
			rows = append(rows, row)
		}
		return rows
	}
	cursor, err := ticket.Cursor()
	if err != nil {
		t.Fatal(err)
	}
	var run [1]epoch.Run
	for n, passed := cursor.Next(run[:], 7); passed > 0; n, passed = cursor.Next(run[:], 7) {
		for _, r := range run[:n] {
			for row := r.First; row < r.First+r.Rows; row++ {
				if int64(row) >= ticket.Bounds[0] && int64(row) < ticket.Bounds[1] {
					rows = append(rows, int64(row))
				}
			}
		}
	}
	return rows
}
