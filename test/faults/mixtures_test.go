// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc/codes"

	"github.com/kubeflow/datacache/test/kit/deadline"
)

// mixing requests the rows of the table of numbers in a mixture of length 2^46 with another part.
func mixing(weight, other uint64) *flight.FlightDescriptor {
	cmd, err := json.Marshal(map[string]any{
		"v": 1, "kind": "mix", "part": 0, "parts": []map[string]any{
			{"rows": manyRows, "weights": []uint64{weight}}, {"rows": 3, "weights": []uint64{other}},
		},
		"unit": "row", "length": 1 << 46, "seed": 1, "epoch": 0, "shuffle": true, "clump": 7, "global_batch": 1024, "tail": "drop", "rank": 1, "world": 2,
		"columns": []string{"id"},
	})
	if err != nil {
		panic(err) // numbers and strings can always be encoded
	}
	return &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: cmd}
}

// TestMixturesTakeBoundedWork asks for mixtures whose permutations have few elements, which made the head evaluate thousands for each position,
// and for a part with few of the draws, which data nodes looked for at every position.
func TestMixturesTakeBoundedWork(t *testing.T) {
	t.Parallel()
	c := numbers(t, nil, nil)
	for _, weights := range [][2]uint64{{1, 1}, {2, 1}, {1, 1 << 40}, {1 << 40, 1}} {
		t.Run(fmt.Sprint(weights), func(t *testing.T) {
			const requests = 10
			before := c.head.cpu()
			for range requests {
				if _, err := c.info(deadline.Context(t), mixing(weights[0], weights[1])); err != nil {
					t.Fatal(err)
				}
			}
			used := (c.head.cpu() - before) / requests
			t.Logf("the head used %.3f s for an answer", used)
			if most := 0.05; used > most && !raceEnabled {
				t.Errorf("the head used %.3f s for an answer, want at most %.2f", used, most)
			}
		})
	}
	_, err := c.info(deadline.Context(t), mixing(5000, 1<<40))
	wantStatus(t, err, codes.InvalidArgument, "weights of phase 0: 5000 of 1099511632776 for parts[0]: want at least one in 1048576, or at most 1024")

	info, err := c.info(deadline.Context(t), mixing(1, 1<<40))
	if err != nil {
		t.Fatal(err)
	}
	ctx := deadline.Context(t)
	conn, err := dial(ctx, c.nodeAddrs[0])
	if err != nil {
		t.Fatal(err)
	}
	data, err := flight.NewFlightServiceClient(conn).DoGet(ctx, info.GetEndpoint()[0].GetTicket())
	if err != nil {
		t.Fatal(err)
	}
	reader, err := flight.NewRecordReader(data)
	if err != nil {
		t.Fatal(err)
	}
	rows := int64(0)
	for reader.Next() {
		rows += reader.RecordBatch().NumRows()
	}
	if err := reader.Err(); err != nil || rows < 1 || rows > 64 {
		t.Errorf("%d rows, %v: want about half of the part's 64", rows, err)
	}
}
