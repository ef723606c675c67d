// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// recording is a connection that records each write.
type recording struct {
	net.Conn
	writes [][]byte
}

func (r *recording) Write(b []byte) (int, error) {
	r.writes = append(r.writes, bytes.Clone(b))
	return r.Conn.Write(b)
}

// TestTLSWritesFullRecordsTogether checks that bytes, however they are divided into slices, are sent as full records, many per system
// call.
func TestTLSWritesFullRecordsTogether(t *testing.T) {
	random := seedtest.New(t)
	serverTLS, clientTLS := selfSigned(t)
	clientTLS.ServerName = "127.0.0.1"
	serverTLS.DynamicRecordSizingDisabled = true
	near, far := net.Pipe()
	defer func() { _ = near.Close() }()
	raw := &recording{Conn: near}
	server, client := newTLSConn(raw, serverTLS), tls.Client(far, clientTLS)
	shaken := make(chan error)
	go func() { shaken <- client.HandshakeContext(t.Context()) }()
	if err := server.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-shaken; err != nil {
		t.Fatal(err)
	}
	for range 50 {
		var slices [][]byte
		for range 1 + random.IntN(20) {
			slices = append(slices, make([]byte, random.IntN(1<<(1+random.IntN(19)))))
			for i := range slices[len(slices)-1] {
				slices[len(slices)-1][i] = byte(random.Uint32())
			}
		}
		want := bytes.Join(slices, nil)
		raw.writes = nil
		wrote := make(chan error)
		go func() { wrote <- server.writeSlices(slices) }()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(client, got); err != nil {
			t.Fatal(err)
		}
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(got, want) {
			t.Fatalf("%d bytes came otherwise than they were sent", len(want))
		}
		records := recordLengths(t, bytes.Join(raw.writes, nil))
		if most := (len(want) + recordBytes - 1) / recordBytes; len(records) != most {
			t.Errorf("%d bytes went in %d records, want %d", len(want), len(records), most)
		}
		if most := len(want)/(batchBytes-2*recordBytes) + 1; len(raw.writes) > most {
			t.Errorf("%d bytes took %d writes, want %d at most", len(want), len(raw.writes), most)
		}
		if server.records.batch != nil {
			t.Error("a connection that writes nothing keeps a buffer")
		}
	}
}

// recordLengths returns the lengths of the TLS records in data.
func recordLengths(t *testing.T, data []byte) (lengths []int) {
	t.Helper()
	for len(data) > 0 {
		n := int(binary.BigEndian.Uint16(data[3:]))
		if len(data) < 5+n {
			t.Fatalf("a record of %d bytes where %d are left", n, len(data)-5)
		}
		lengths, data = append(lengths, n), data[5+n:]
	}
	return lengths
}

// peeked is a connection that is read through a buffer.
type peeked struct {
	net.Conn
	*bufio.Reader
}

// Read implements net.Conn.
func (p peeked) Read(to []byte) (int, error) { return p.Reader.Read(to) }

// peek is a Config.Peek: TLS is what does not begin with a letter.
func peek(raw net.Conn) (from net.Conn, secure bool, err error) {
	r := bufio.NewReader(raw)
	first, err := r.Peek(1)
	return peeked{raw, r}, err == nil && first[0] < 'A', err
}

// TestOnePort checks that one port takes TLS and plain text, that the peer of a call tells them apart, and that a connection that begins
// with anything else, or with nothing, is closed.
func TestOnePort(t *testing.T) {
	t.Parallel()
	serverTLS, clientTLS := selfSigned(t)
	secure := make(chan bool, 2)
	s := serve(t, Config{TLS: serverTLS, Plain: true, Peek: peek, Unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		p, _ := peer.FromContext(ctx)
		secure <- p.AuthInfo != nil
		return handler(ctx, req)
	}}, nil)
	for want, creds := range map[bool]credentials.TransportCredentials{true: credentials.NewTLS(clientTLS), false: insecure.NewCredentials()} {
		conn, err := grpc.NewClient(s.address, grpc.WithTransportCredentials(creds), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{})))
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		request, reply := raw(bytes.Repeat([]byte("x"), 100_000)), raw{}
		if err := conn.Invoke(t.Context(), "/t/Echo", &request, &reply); err != nil || !bytes.Equal(request, reply) {
			t.Fatalf("TLS %v: %d bytes, %v", want, len(reply), err)
		}
		if got := <-secure; got != want {
			t.Errorf("the call came by TLS = %v, want %v", got, want)
		}
	}
	for _, text := range []string{"GET / HTTP/1.1\r\n\r\n", "\x00", "\x16\x03\x01\x00\x05hello"} {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", s.address)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := conn.Write([]byte(text)); err != nil {
			t.Fatal(err)
		}
		_ = conn.(*net.TCPConn).CloseWrite()
		deadline.Bound(t, conn)
		if _, err := io.Copy(io.Discard, conn); errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("%q: the connection stays open", text)
		}
		_ = conn.Close()
	}
}
