// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package readtest reads caches as a rank of a training job does.
package readtest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

// Job is the name of the job whose ranks read.
const Job = "trial-7"

// Reader is a client of a cache, for one goroutine. Create it with New, and Close it.
type Reader struct {
	head    string
	clients map[string]flight.Client // by address
}

// New returns a reader of the cache whose head is at an address, which may begin with grpc://.
func New(head string) *Reader {
	return &Reader{head: strings.TrimPrefix(head, "grpc://"), clients: map[string]flight.Client{}}
}

// Close closes the reader's connections, and with them its streams.
func (r *Reader) Close() {
	for _, c := range r.clients {
		_ = c.Close() // it was only read from
	}
}

func (r *Reader) client(address string) (flight.Client, error) {
	if c := r.clients[address]; c != nil {
		return c, nil
	}
	c, err := flight.NewClientWithMiddleware(address, nil, nil, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err == nil {
		r.clients[address] = c
	}
	return c, err
}

// Epoch reads what a rank of two gets in an epoch, from every data node. If idle is set, it reads only the first message of each stream
// and leaves the streams open until Close.
func (r *Reader) Epoch(ctx context.Context, epoch, rank int, idle bool) error {
	head, err := r.client(r.head)
	if err != nil {
		return err
	}
	command := fmt.Sprintf(`{"v":1,"kind":"epoch","seed":1,"epoch":%d,"shuffle":false,"global_batch":64,"tail":"pad",`+
		`"rank":%d,"world":2,"job":%q}`, epoch, rank, Job)
	info, err := head.GetFlightInfo(ctx, &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: []byte(command)})
	if err != nil {
		return err
	}
	for _, endpoint := range info.Endpoint {
		node, err := r.client(strings.TrimPrefix(endpoint.Location[0].Uri, "grpc://"))
		if err != nil {
			return err
		}
		stream, err := node.DoGet(ctx, endpoint.Ticket)
		for err == nil {
			if _, err = stream.Recv(); idle {
				break
			}
		}
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
	}
	return nil
}

// Epochs reads epochs as a rank of two, one after the other until ctx ends, and returns the first other error.
func (r *Reader) Epochs(ctx context.Context, rank int) error {
	for epoch := 0; ctx.Err() == nil; epoch++ {
		if err := r.Epoch(ctx, epoch, rank, false); err != nil && ctx.Err() == nil {
			return err
		}
	}
	return nil
}
