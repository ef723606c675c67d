// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command tcpcopy is the lower bound in benchmarks: it writes the buffers of the same record batches to a plain TCP connection, 512
// KiB per write, without any framing.
//
// A client sends the line "INDEX/TOTAL" and reads one of TOTAL equal runs of batches up to the end of the stream. When the rows are
// in memory the command prints "ready tcp://HOST:PORT".
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"runtime/debug"
	"syscall"

	"github.com/apache/arrow-go/v18/arrow"
	"golang.org/x/sys/unix"

	"github.com/kubeflow/datacache/test/bench/internal/pqfiles"
)

const writeBytes = 512 << 10

func main() {
	var o pqfiles.Options
	listen := flag.String("listen", "127.0.0.1:0", "address to listen on")
	flag.Int64Var(&o.BatchRows, "batch-rows", 65536, "rows of a record batch")
	flag.Parse()
	if err := run(context.Background(), *listen, flag.Args(), o); err != nil {
		fmt.Fprintln(os.Stderr, "tcpcopy:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, listen string, paths []string, o pqfiles.Options) error {
	batches, err := pqfiles.Load(ctx, paths, o)
	if err != nil {
		return err
	}
	bodies := make([][][]byte, len(batches))
	for i, b := range batches {
		for _, column := range b.Columns() {
			bodies[i] = appendBuffers(bodies[i], column.Data())
		}
	}
	debug.FreeOSMemory()
	listener, err := (&net.ListenConfig{Control: dontPace}).Listen(ctx, "tcp", listen)
	if err != nil {
		return fmt.Errorf("listen on %s: %w", listen, err)
	}
	fmt.Printf("ready tcp://%s\n", listener.Addr())
	for {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			if err := errors.Join(serve(conn, bodies), conn.Close()); err != nil {
				fmt.Fprintln(os.Stderr, "tcpcopy:", err)
			}
		}()
	}
}

// dontPace makes a socket's accepted connections use Reno: BBR, the default of some systems, costs more, and this is to be a lower
// bound.
func dontPace(_, _ string, socket syscall.RawConn) error {
	var refused error
	err := socket.Control(func(fd uintptr) {
		refused = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, "reno")
	})
	return errors.Join(err, refused)
}

// appendBuffers appends the buffers that Arrow IPC would send: without bitmaps where nothing is null.
func appendBuffers(to [][]byte, data arrow.ArrayData) [][]byte {
	for i, buffer := range data.Buffers() {
		if buffer == nil || (i == 0 && data.NullN() == 0) {
			continue
		}
		to = append(to, buffer.Bytes())
	}
	for _, child := range data.Children() {
		to = appendBuffers(to, child)
	}
	return to
}

func serve(conn net.Conn, bodies [][][]byte) error {
	var index, total int
	if _, err := fmt.Fscanf(conn, "%d/%d\n", &index, &total); err != nil || index < 0 || index >= total {
		return fmt.Errorf("request from %s: want the line INDEX/TOTAL", conn.RemoteAddr())
	}
	lo, hi := pqfiles.Share(index, total, len(bodies))
	for _, buffers := range bodies[lo:hi] {
		for _, b := range buffers {
			if err := write(conn, b); err != nil {
				return err
			}
		}
	}
	return nil
}

func write(conn net.Conn, b []byte) error {
	for len(b) > 0 {
		n, err := conn.Write(b[:min(len(b), writeBytes)])
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}
