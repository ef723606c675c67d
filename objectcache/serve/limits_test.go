// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kubeflow/datacache/objectcache/pace"
	"github.com/kubeflow/datacache/test/kit/deadline"
)

// never is a limit that is not reached during a test.
const never = time.Hour

// unlimited is a set of limits that are never reached; each test shortens one of them.
var unlimited = limits{header: never, idle: never, Limits: pace.Limits{Stall: never, LeastSpeed: math.MaxInt64}}

// TestSilentClients has clients send something and then nothing more: the server must close the connection after the one limit that
// the test case shortens.
func TestSilentClients(t *testing.T) {
	t.Parallel()
	const (
		brief = 50 * time.Millisecond
		long  = time.Second // used where the server must respond within the limit
		put   = "PUT /v1/objects/open/x HTTP/1.1\r\nHost: cache\r\n"
	)
	header, idle, stall, answer := unlimited, unlimited, unlimited, unlimited
	header.header, idle.idle, stall.Stall, answer.Stall = brief, brief, brief, long
	tests := []struct {
		name   string
		limits limits
		text   string
		want   string // the statuses of the responses
	}{
		{"no request", header, "", ""},
		{"half a request line", header, "GET /v1/obj", "(400)?"},
		{"half a header", header, plainGet + asA, ""},
		{"half a header after a hit", header, plainGet + asA + "\r\n\r\n" + plainGet + asA, "200"},
		{"nothing after a hit", idle, plainGet + asA + "\r\n\r\n", "200"},
		{"nothing after two hits", idle, strings.Repeat(plainGet+asA+"\r\n\r\n", 2), "200 200"},
		{"nothing after a miss", idle, "GET /v1/objects/open/y HTTP/1.1\r\nHost: cache\r\n" + asA + "\r\n\r\n", "404"},
		{"half a body", answer, put + asA + "\r\nContent-Length: 8\r\n\r\nhalf", "400"},
		{"half a body in chunks", answer, put + asA + "\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n", "400"},
		{"no body for a refusal", stall, put + "Content-Length: 8\r\n\r\n", "(401)?"}, // the response is sent after waiting for the body
		{"no body for a read", stall, plainGet + asA + "\r\nContent-Length: 8\r\n\r\n", "(200)?"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			m := startWith(t, "alone", test.limits)
			m.holdsX(t)
			began := time.Now()
			got := listenTo(t, dial(t, m.address), test.text)
			if limit := min(test.limits.header, test.limits.idle, test.limits.Stall); time.Since(began) < limit {
				t.Errorf("closed after %v, want no less than %v", time.Since(began), limit)
			}
			if !regexp.MustCompile("^" + test.want + "$").MatchString(got) {
				t.Errorf("answers %q, want %q", got, test.want)
			}
		})
	}
}

// holdsX stores a small object "x" directly in the server's store.
func (m *member) holdsX(t *testing.T) {
	t.Helper()
	w, err := m.store.Create("open", "x", 4)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte("body")); err != nil {
		t.Fatal(err)
	}
	if err := w.Commit(); err != nil {
		t.Fatal(err)
	}
}

var status = regexp.MustCompile(`HTTP/1\.1 (\d+)`)

// listenTo sends text and returns the statuses of the responses received until the server closes the connection.
func listenTo(t *testing.T, conn *net.TCPConn, text string) string {
	t.Helper()
	_, _ = io.WriteString(conn, text) // fails if the server has closed the connection already
	got, err := io.ReadAll(conn)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Fatal(err)
	}
	var statuses []string
	for _, line := range status.FindAllStringSubmatch(string(got), -1) {
		statuses = append(statuses, line[1])
	}
	return strings.Join(statuses, " ")
}

// TestABodyThatTakesLong checks that a request with a slow body gets a response later than the limit for a request without one.
func TestABodyThatTakesLong(t *testing.T) {
	t.Parallel()
	l := unlimited
	l.Stall, l.LeastSpeed = time.Second/2, 1
	for name, test := range map[string]struct{ rest, want int }{"taken": {100, 201}, "too large": {2 << 20, 413}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			conn := dial(t, startWith(t, "alone", l).address)
			chunk := func(n int) string { return fmt.Sprintf("%x\r\n%s\r\n", n, strings.Repeat("x", n)) }
			const begin = 100 // in seconds
			fmt.Fprintf(conn, "PUT /v1/objects/open/x HTTP/1.1\r\nHost: cache\r\n%s\r\nTransfer-Encoding: chunked\r\n\r\n%s", asA, chunk(begin))
			time.Sleep(l.Stall + l.Stall/4)                                    //nolint:forbidigo // a slow client
			go func() { fmt.Fprintf(conn, "%s0\r\n\r\n", chunk(test.rest)) }() // the server does not read all of it if it rejects the request
			response, err := http.ReadResponse(bufio.NewReader(conn), nil)
			if err != nil || response.StatusCode != test.want {
				t.Fatalf("%v %v, want %d", response, err, test.want)
			}
		})
	}
}

// TestAClientThatStopsReading checks that the server closes the connection and the file when a client has read only a part.
func TestAClientThatStopsReading(t *testing.T) {
	t.Parallel()
	s, dir := withLarge(t, never)
	s.limits = unlimited
	s.limits.Stall = 250 * time.Millisecond
	address, accepted := serveOne(t, s)
	conn := dial(t, address)
	socket := socketOf(t, <-accepted)
	if n := descriptors(t, socket); n != 1 {
		t.Fatalf("there are %d descriptors of the server's %s, want 1", n, socket)
	}
	began := time.Now()
	if _, err := io.WriteString(conn, plainGet+asA+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	awaitNone(t, socket)
	if took := time.Since(began); took < s.limits.Stall {
		t.Errorf("closed after %v, want no less than %v", took, s.limits.Stall)
	}
	awaitNone(t, filepath.Join(dir, "objects"))
	if n, err := io.Copy(io.Discard, conn); n >= large || err != nil && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("%d bytes came of an object of %d, %v", n, large, err)
	}
}

// TestASlowReader checks that a slow reader of a large response gets more time than for a response without a body.
func TestASlowReader(t *testing.T) {
	t.Parallel()
	s, _ := withLarge(t, never)
	s.limits = unlimited
	s.limits.Stall, s.limits.LeastSpeed = time.Millisecond, 1<<18
	address, _ := serveOne(t, s)
	conn := dial(t, address)
	if _, err := io.WriteString(conn, plainGet+asA+"\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	for at := 0; at < large; at += large / 64 {
		time.Sleep(5 * s.limits.Stall) //nolint:forbidigo // a slow client
		if n, err := io.CopyN(io.Discard, response.Body, large/64); err != nil {
			t.Fatalf("from byte %d on %d more, then %v", at, n, err)
		}
	}
}

// serveOne serves until the end of the test. accepted receives the server's side of the first connection.
func serveOne(t *testing.T, s *Server) (address string, accepted <-chan net.Conn) {
	t.Helper()
	conns := make(chan net.Conn, 1)
	server := s.newHTTP(s)
	server.ConnState = func(conn net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns <- conn
		}
	}
	listener := listen(t)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return listener.Addr().String(), conns
}

// socketOf is the prefix of the links in /proc/self/fd to sockets of a connection.
func socketOf(t *testing.T, conn net.Conn) string {
	t.Helper()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var link string
	var failed error
	if err := raw.Control(func(fd uintptr) { link, failed = os.Readlink(fmt.Sprint("/proc/self/fd/", fd)) }); err != nil || failed != nil {
		t.Fatal(err, failed)
	}
	return link
}

// descriptors counts the file descriptors of this process whose links have the prefix.
func descriptors(t *testing.T, prefix string) (n int) {
	t.Helper()
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, fd := range all {
		link, err := os.Readlink(filepath.Join("/proc/self/fd", fd.Name()))
		if err == nil && strings.HasPrefix(link, prefix) { // otherwise it was closed meanwhile
			n++
		}
	}
	return n
}

// awaitNone waits until no file descriptor's link has the prefix.
func awaitNone(t *testing.T, prefix string) {
	t.Helper()
	deadline.Until(t, prefix+" to be closed", func() bool { return descriptors(t, prefix) == 0 })
}
