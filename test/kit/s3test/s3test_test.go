// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package s3test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/test/kit/deadline"
)

// get does a GET on a connection of its own.
func get(t *testing.T, s *Server, path string, header ...string) (int, []byte, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL()+"/"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Close = true
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp.StatusCode, body, err
}

func TestObjects(t *testing.T) {
	s := Start(t)
	s.Put("b", "x/2", []byte("two"))
	if uri := s.Put("b", "x/1", []byte("one")); uri != "s3://b/x/1" {
		t.Errorf("URI %s", uri)
	}
	s.Put("b", "gone", nil)
	s.Delete("b", "gone")
	if d := cmp.Diff([]string{"x/1", "x/2"}, s.Objects("b")); d != "" {
		t.Error(d)
	}
	if got := s.Get("b", "x/2"); string(got) != "two" {
		t.Errorf("Get: %q", got)
	}
}

func TestRangesAndConditions(t *testing.T) {
	s := Start(t)
	s.Put("b", "k", []byte("0123456789"))
	s.Put("b", "empty", nil)
	tests := []struct {
		name, path string
		header     []string
		status     int
		body       string
	}{
		{name: "all", path: "b/k", status: 200, body: "0123456789"},
		{name: "range", path: "b/k", header: []string{"Range", "bytes=2-4"}, status: 206, body: "234"},
		{name: "last bytes", path: "b/k", header: []string{"Range", "bytes=-3"}, status: 206, body: "789"},
		{name: "more last bytes than there are", path: "b/k", header: []string{"Range", "bytes=-100"}, status: 206, body: "0123456789"},
		{name: "last bytes of nothing", path: "b/empty", header: []string{"Range", "bytes=-100"}, status: 416},
		{name: "beyond the end", path: "b/k", header: []string{"Range", "bytes=10-"}, status: 416},
		{name: "another tag", path: "b/k", header: []string{"If-Match", `"x"`}, status: 412},
		{name: "its tag", path: "b/k", header: []string{"If-Match", `"781e5e245d69b566979b86e28d23f2c7"`}, status: 200, body: "0123456789"},
		{name: "missing", path: "b/none", status: 404},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			status, body, err := get(t, s, tt.path, tt.header...)
			if err != nil || status != tt.status {
				t.Fatalf("%d, %v; want %d", status, err, tt.status)
			}
			if status < 300 && string(body) != tt.body {
				t.Errorf("%q, want %q", body, tt.body)
			}
		})
	}
}

func TestFaults(t *testing.T) {
	data := bytes.Repeat([]byte("0123456789"), 100)
	flipped := bytes.Clone(data)
	flipped[500] ^= 0xff
	tests := []struct {
		fault  Fault
		header []string
		status int
		body   []byte // of a complete response, or what was read before err
		err    error
	}{
		{fault: Throttle(), status: 503},
		{fault: Deny(), status: 403},
		{fault: Refuse(500, "InternalError"), status: 500},
		{fault: Corrupt(500), status: 200, body: flipped},
		{fault: Corrupt(500), header: []string{"Range", "bytes=499-500"}, status: 206, body: flipped[499:501]},
		{fault: Corrupt(500), header: []string{"Range", "bytes=0-9"}, status: 206, body: data[:10]},
		{fault: Truncate(300), status: 200, body: data[:300], err: io.ErrUnexpectedEOF},
		{fault: Truncate(-1), err: io.EOF},
		{fault: Reset(-1), err: syscall.ECONNRESET},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.fault, tt.header), func(t *testing.T) {
			s := Start(t)
			s.Put("b", "key", data)
			s.Put("b", "other", data)
			injected := s.Inject(Match{Key: "b/ke", Skip: 1, Count: 1}, tt.fault)
			for i, path := range []string{"b/other", "b/key", "b/key", "b/key"} {
				status, body, err := get(t, s, path, tt.header...)
				if i != 2 { // only the second GET of the key fails
					if status/100 != 2 || err != nil {
						t.Errorf("GET %d of %s: %d, %v", i, path, status, err)
					}
					continue
				}
				if status != tt.status || !errors.Is(err, tt.err) || tt.body != nil && !bytes.Equal(body, tt.body) {
					t.Errorf("%d, %d bytes, %v; want %d, %d bytes, %v", status, len(body), err, tt.status, len(tt.body), tt.err)
				}
			}
			if injected.Hits() != 1 {
				t.Errorf("%d hits, want 1", injected.Hits())
			}
			log := s.Requests()
			if got := log[2]; got.Fault != tt.fault.String() || log[1].Fault != "" || got.Status != tt.status {
				t.Errorf("log %+v", got)
			}
		})
	}
}

func TestResetInMidBody(t *testing.T) {
	s := Start(t)
	s.Put("b", "k", make([]byte, 1000))
	s.Inject(Match{}, Reset(300))
	if _, body, err := get(t, s, "b/k"); err == nil || len(body) > 300 {
		t.Errorf("%d bytes, %v", len(body), err)
	}
}

func TestStallUntilReleased(t *testing.T) {
	s := Start(t)
	s.Put("b", "k", []byte("0123456789"))
	stall := s.Inject(Match{Count: 1}, Stall(4))
	resp, err := http.Get(s.URL() + "/b/k")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	first := make([]byte, 4)
	if _, err := io.ReadFull(resp.Body, first); err != nil || string(first) != "0123" {
		t.Fatalf("%q, %v", first, err)
	}
	stall.Release()
	if rest, err := io.ReadAll(resp.Body); err != nil || string(rest) != "456789" {
		t.Errorf("%q, %v", rest, err)
	}
}

func TestRemove(t *testing.T) {
	s := Start(t)
	s.Put("b", "k", nil)
	deny := s.Inject(Match{}, Deny())
	if status, _, _ := get(t, s, "b/k"); status != 403 {
		t.Errorf("status %d, want 403", status)
	}
	deny.Remove()
	if status, _, _ := get(t, s, "b/k"); status != 200 {
		t.Errorf("status %d after Remove, want 200", status)
	}
}

func TestLog(t *testing.T) {
	s := Start(t)
	s.Put("b", "k", []byte("0123456789"))
	_, _, err := get(t, s, "b/k", "Range", "bytes=2-4", "Authorization", "AWS4-HMAC-SHA256 Credential=me/20260101/eu-west-1/s3/aws4_request, SignedHeaders=host")
	if err != nil {
		t.Fatal(err)
	}
	want := []Request{{Method: "GET", Bucket: "b", Key: "k", Range: "bytes=2-4", Status: 206, Bytes: 3, AccessKeyID: "me", Region: "eu-west-1"}}
	if d := cmp.Diff(want, s.Requests()); d != "" {
		t.Error(d)
	}
	s.Forget()
	if n := len(s.Requests()); n != 0 {
		t.Errorf("%d requests after Forget", n)
	}
}

func TestLoopbackOnly(t *testing.T) {
	if u := Start(t).URL(); !strings.HasPrefix(u, "http://127.0.0.1:") {
		t.Errorf("URL %s", u)
	}
}

// TestEndsWithTheTest checks that a server with a stalled response stops at the end of the test.
func TestEndsWithTheTest(t *testing.T) {
	var url string
	ended := make(chan error, 1)
	t.Run("inner", func(t *testing.T) {
		s := Start(t)
		url = s.URL()
		s.Put("b", "k", []byte("0123456789"))
		stall := s.Inject(Match{}, Stall(-1))
		go func() {
			resp, err := http.Get(url + "/b/k")
			if err == nil {
				err = resp.Body.Close()
			}
			ended <- err
		}()
		deadline.Eventually(t, func() error {
			if stall.Hits() == 0 {
				return errors.New("no request has come")
			}
			return nil
		})
	})
	<-ended // with or without an error: it only matters that it ends
	if _, err := http.Get(url); err == nil {
		t.Error("the server outlives its test")
	}
}
