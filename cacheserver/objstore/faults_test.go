// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/s3test"
)

const size = 100_000

var data = pattern(size)

// TestPassingFaults injects temporary faults: reads must succeed, and only the counters may show the faults.
func TestPassingFaults(t *testing.T) {
	tests := []struct {
		name  string
		match s3test.Match
		fault s3test.Fault
		want  []string // all requests
		tries int64    // retries
	}{
		{
			name: "throttled at open", match: s3test.Match{Count: 3}, fault: s3test.Throttle(), tries: 3,
			want: []string{"bytes=-1000", "bytes=-1000", "bytes=-1000", "bytes=-1000", "bytes=0-49999"},
		},
		{
			name: "throttled at read", match: s3test.Match{Skip: 1, Count: 2}, fault: s3test.Throttle(), tries: 2,
			want: []string{"bytes=-1000", "bytes=0-49999", "bytes=0-49999", "bytes=0-49999"},
		},
		{
			name: "429", match: s3test.Match{Skip: 1, Count: 1}, fault: s3test.Refuse(429, "TooManyRequests"), tries: 1,
			want: []string{"bytes=-1000", "bytes=0-49999", "bytes=0-49999"},
		},
		{
			name: "500", match: s3test.Match{Skip: 1, Count: 1}, fault: s3test.Refuse(500, "InternalError"), tries: 1,
			want: []string{"bytes=-1000", "bytes=0-49999", "bytes=0-49999"},
		},
		{
			name: "502 without a code", match: s3test.Match{Skip: 1, Count: 1}, fault: s3test.Refuse(502, ""), tries: 1,
			want: []string{"bytes=-1000", "bytes=0-49999", "bytes=0-49999"},
		},
		{
			name: "RequestTimeout with status 400", match: s3test.Match{Skip: 1, Count: 1}, fault: s3test.Refuse(400, "RequestTimeout"), tries: 1,
			want: []string{"bytes=-1000", "bytes=0-49999", "bytes=0-49999"},
		},
		{
			name: "tail cut short is continued", match: s3test.Match{Count: 1}, fault: s3test.Truncate(400), tries: 1,
			want: []string{"bytes=-1000", "bytes=99400-99999", "bytes=0-49999"},
		},
		{
			name: "body cut short is continued, twice", match: s3test.Match{Skip: 1, Count: 2}, fault: s3test.Truncate(10_000), tries: 2,
			want: []string{"bytes=-1000", "bytes=0-49999", "bytes=10000-49999", "bytes=20000-49999"},
		},
		{
			// The fault hits Open: on a reused connection net/http itself would retry.
			name: "closed before the header", match: s3test.Match{Count: 1}, fault: s3test.Truncate(-1), tries: 1,
			want: []string{"bytes=-1000", "bytes=-1000", "bytes=0-49999"},
		},
		{
			// The fault hits Open: on a reused connection net/http itself would retry.
			name: "reset before the header", match: s3test.Match{Count: 1}, fault: s3test.Reset(-1), tries: 1,
			want: []string{"bytes=-1000", "bytes=-1000", "bytes=0-49999"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			srv := s3test.Start(t)
			uri := srv.Put("bucket", "key", data)
			fault := srv.Inject(tt.match, tt.fault)
			s, _ := newTestStore(t, srv, Config{TailBytes: 1000})
			f := open(t, s, uri)
			readHalf(t, f)
			if d := cmp.Diff(tt.want, ranges(srv)); d != "" {
				t.Errorf("requests (-want +got):\n%s", d)
			}
			st := s.Stats()
			if st.Retries != tt.tries || st.Failures != 0 || st.Requests != int64(len(tt.want)) || st.Bytes != 51_000 {
				t.Errorf("stats %+v, want %d retries, %d requests, 51000 bytes", st, tt.tries, len(tt.want))
			}
			if fault.Hits() != int(tt.tries) {
				t.Errorf("%d hits, want %d", fault.Hits(), tt.tries)
			}
		})
	}
}

// readHalf reads the first half of the object and checks the bytes.
func readHalf(t *testing.T, f *File) {
	t.Helper()
	p := make([]byte, size/2)
	if _, err := f.ReadAt(p, 0); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(p, data[:size/2]) {
		t.Error("bytes differ")
	}
}

// TestResetInMidBody does not rely on how many bytes arrive before a reset: all must arrive in the end, and none may be fetched
// unnecessarily.
func TestResetInMidBody(t *testing.T) {
	srv := s3test.Start(t)
	uri := srv.Put("bucket", "key", data)
	srv.Inject(s3test.Match{Skip: 1, Count: 3}, s3test.Reset(10_000))
	s, _ := newTestStore(t, srv, Config{TailBytes: 1000})
	f := open(t, s, uri)
	readHalf(t, f)
	if st := s.Stats(); st.Retries != 3 || st.Bytes != 51_000 {
		t.Errorf("stats %+v, want 3 retries and 51000 bytes", st)
	}
}

func TestStall(t *testing.T) {
	for name, after := range map[string]int64{"before the header": -1, "in mid-body": 20_000} {
		t.Run(name, func(t *testing.T) {
			srv := s3test.Start(t)
			uri := srv.Put("bucket", "key", data)
			srv.Inject(s3test.Match{Skip: 1, Count: 1}, s3test.Stall(after))
			s, _ := newTestStore(t, srv, Config{TailBytes: 1000, StallTimeout: 300 * time.Millisecond})
			f := open(t, s, uri)
			readHalf(t, f)
			if st := s.Stats(); st.Retries < 1 || st.Failures != 0 {
				t.Errorf("stats %+v, want a retry", st)
			}
			if after > 0 && !slices.Contains(ranges(srv), "bytes=20000-49999") {
				t.Errorf("requests %v, want one to go on after the 20000 bytes that came", ranges(srv))
			}
		})
	}
}

// TestFinalFaults injects faults that end the read, and checks the error shown to the user.
func TestFinalFaults(t *testing.T) {
	tests := []struct {
		name     string
		fault    s3test.Fault
		is       error
		requests int
		say      []string
	}{
		{name: "denied", fault: s3test.Deny(), is: fs.ErrPermission, requests: 1,
			say: []string{"read s3://bucket/key: access denied (403 AccessDenied", "check the credentials", "s3:GetObject on bucket/key"}},
		{name: "unauthorized", fault: s3test.Refuse(401, ""), is: fs.ErrPermission, requests: 1, say: []string{"access denied (401"}},
		{name: "expired token", fault: s3test.Refuse(400, "ExpiredToken"), is: fs.ErrPermission, requests: 1, say: []string{"access denied (400 ExpiredToken"}},
		{name: "bad request", fault: s3test.Refuse(400, "InvalidRequest"), requests: 1, say: []string{"the store refused the request (400 InvalidRequest"}},
		{name: "precondition", fault: s3test.Refuse(412, "PreconditionFailed"), is: ErrChanged, requests: 1, say: []string{"changed while it was read"}},
		{name: "redirect to where it is", fault: s3test.Redirect(s3test.Region), requests: 1,
			say: []string{"the bucket is in region us-east-1 (301 PermanentRedirect"}},
		{name: "redirect elsewhere", fault: s3test.Redirect("eu-west-3"), requests: 2,
			say: []string{"the bucket is in region eu-west-3", "set the S3 region to eu-west-3"}},
		{name: "throttled for ever", fault: s3test.Throttle(), requests: 4,
			say: []string{"read s3://bucket/key: 503 SlowDown", "gave up after 4 tries in 350ms", "fewer requests"}},
		{name: "reset for ever", fault: s3test.Reset(-1), requests: 4, say: []string{"gave up after 4 tries", "check the network"}},
		{name: "truncated for ever", fault: s3test.Truncate(0), requests: 4,
			say: []string{"the answer ended after 0 of 1000 bytes: unexpected EOF", "gave up after 4 tries"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			srv := s3test.Start(t)
			uri := srv.Put("bucket", "key", data)
			srv.Inject(s3test.Match{}, tt.fault)
			s, _ := newTestStore(t, srv, Config{TailBytes: 1000, Retry: Retry{Attempts: 4}})
			_, err := s.Open(t.Context(), uri)
			checkError(t, err, tt.is, tt.say)
			if n := len(srv.Requests()); n != tt.requests {
				t.Errorf("%d requests, want %d", n, tt.requests)
			}
			if st := s.Stats(); st.Failures != 1 {
				t.Errorf("stats %+v, want 1 failure", st)
			}
		})
	}
}

// checkError checks that err matches is, unless is is nil, and that its text contains some words.
func checkError(t *testing.T, err, is error, say []string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	t.Log(err)
	if is != nil && !errors.Is(err, is) {
		t.Errorf("%v is not %v", err, is)
	}
	for _, words := range say {
		if !strings.Contains(err.Error(), words) {
			t.Errorf("%q does not say %q", err, words)
		}
	}
}

func TestMissing(t *testing.T) {
	srv := s3test.Start(t)
	s, _ := newTestStore(t, srv, Config{})
	srv.Bucket("bucket")
	_, err := s.Open(t.Context(), "s3://bucket/gone")
	checkError(t, err, fs.ErrNotExist, []string{"read s3://bucket/gone: not found (404 NoSuchKey", "the file was deleted"})
	_, err = s.Open(t.Context(), "s3://nobucket/gone")
	checkError(t, err, fs.ErrNotExist, []string{"404 NoSuchBucket", "check the bucket's name"})
	if st := s.Stats(); st.Requests != 2 || st.Retries != 0 || st.Failures != 2 {
		t.Errorf("stats %+v", st)
	}
}

func TestChangedBetweenOpenAndRead(t *testing.T) {
	changes := map[string]func(srv *s3test.Server){
		"same size": func(srv *s3test.Server) { srv.Put("bucket", "key", pattern(size + 1)[1:]) },
		"longer":    func(srv *s3test.Server) { srv.Put("bucket", "key", pattern(size+1)) },
		"shorter":   func(srv *s3test.Server) { srv.Put("bucket", "key", data[:10]) },
		"empty":     func(srv *s3test.Server) { srv.Put("bucket", "key", nil) },
	}
	for name, change := range changes {
		t.Run(name, func(t *testing.T) {
			srv := s3test.Start(t)
			s, _ := newTestStore(t, srv, Config{TailBytes: 1000, PartBytes: 20_000})
			f := open(t, s, srv.Put("bucket", "key", data))
			change(srv)
			_, err := f.ReadAt(make([]byte, 100), 5000)
			checkError(t, err, ErrChanged, []string{"read s3://bucket/key: changed while it was read", "load again"})
			err = f.Prefetch(t.Context(), []Range{{0, 90_000}})
			checkError(t, err, ErrChanged, nil)
			if f.Buffered() != 1000 {
				t.Errorf("a failed Prefetch left %d bytes", f.Buffered())
			}
			if st := s.Stats(); st.Retries != 0 {
				t.Errorf("stats %+v: a changed object is tried again", st)
			}
		})
	}
}

// TestChangedInMidBody replaces the object between a broken response and the request that continues it: a read must never combine
// parts of two versions.
func TestChangedInMidBody(t *testing.T) {
	srv := s3test.Start(t)
	s, c := newTestStore(t, srv, Config{TailBytes: 1000})
	f := open(t, s, srv.Put("bucket", "key", data))
	srv.Inject(s3test.Match{Count: 1}, s3test.Truncate(10_000))
	s.sleep = func(ctx context.Context, d time.Duration) error {
		srv.Put("bucket", "key", pattern(size + 1)[1:])
		return c.sleep(ctx, d)
	}
	_, err := f.ReadAt(make([]byte, 50_000), 0)
	checkError(t, err, ErrChanged, []string{"after 2 tries"})
}

func TestDeletedAfterOpen(t *testing.T) {
	srv := s3test.Start(t)
	s, _ := newTestStore(t, srv, Config{TailBytes: 1000})
	f := open(t, s, srv.Put("bucket", "key", data))
	srv.Delete("bucket", "key")
	_, err := f.ReadAt(make([]byte, 100), 0)
	checkError(t, err, fs.ErrNotExist, nil)
}

func TestPausesAndTimeLimit(t *testing.T) {
	srv := s3test.Start(t)
	uri := srv.Put("bucket", "key", data)
	srv.Inject(s3test.Match{}, s3test.Throttle())
	s, c := newTestStore(t, srv, Config{Retry: Retry{Attempts: 100, MaxTime: 10 * time.Second}})
	_, err := s.Open(t.Context(), uri)
	checkError(t, err, nil, []string{"after 9 tries in 8.15s"})
	ms := func(n int) time.Duration { return time.Duration(n) * time.Millisecond }
	want := []time.Duration{ms(50), ms(100), ms(200), ms(400), ms(800), ms(1600), ms(2500), ms(2500)}
	if d := cmp.Diff(want, c.pauses); d != "" {
		t.Errorf("pauses at the least jitter (-want +got):\n%s", d)
	}
	r := Config{}.withDefaults().Retry
	if got := r.pause(1, 1); got != ms(100) {
		t.Errorf("first pause at the most jitter %s, want 100ms", got)
	}
	if got := r.pause(1000, 1); got != 5*time.Second {
		t.Errorf("thousandth pause %s, want 5s", got)
	}
}

func TestCancel(t *testing.T) {
	why := errors.New("the loader was told to stop")
	tests := []struct {
		name string
		do   func(ctx context.Context, s *Store, f *File) error
	}{
		{"open", func(ctx context.Context, s *Store, _ *File) error {
			_, err := s.Open(ctx, "s3://bucket/key")
			return err
		}},
		{"prefetch", func(ctx context.Context, _ *Store, f *File) error { return f.Prefetch(ctx, []Range{{0, 50_000}}) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			srv := s3test.Start(t)
			s, _ := newTestStore(t, srv, Config{TailBytes: 1000})
			f := open(t, s, srv.Put("bucket", "key", data))
			ctx, cancel := context.WithCancelCause(t.Context())
			stall := srv.Inject(s3test.Match{}, s3test.Stall(-1))
			ended := make(chan error)
			go func() { ended <- tt.do(ctx, s, f) }()
			deadline.Until(t, "a stalled read", func() bool { return stall.Hits() > 0 })
			cancel(why)
			checkError(t, <-ended, why, []string{"read s3://bucket/key"})
			if st := s.Stats(); st.Retries != 0 || st.Failures != 0 {
				t.Errorf("stats %+v: the end of a context is neither tried again nor a failure", st)
			}
		})
	}
}

// TestCancelOfOpenEndsReads checks that canceling the context passed to Open ends reads that have no context of their own.
func TestCancelOfOpenEndsReads(t *testing.T) {
	srv := s3test.Start(t)
	s, _ := newTestStore(t, srv, Config{TailBytes: 1000})
	ctx, cancel := context.WithCancel(t.Context())
	f, err := s.Open(ctx, srv.Put("bucket", "key", data))
	if err != nil {
		t.Fatal(err)
	}
	cancel()
	if _, err := f.ReadAt(make([]byte, 10), 0); !errors.Is(err, context.Canceled) {
		t.Errorf("ReadAt: %v", err)
	}
	if err := f.Prefetch(t.Context(), []Range{{0, 10}}); !errors.Is(err, context.Canceled) {
		t.Errorf("Prefetch: %v", err)
	}
}

func TestCorruptBytesArriveAsSent(t *testing.T) {
	srv := s3test.Start(t)
	uri := srv.Put("bucket", "key", data)
	srv.Inject(s3test.Match{}, s3test.Corrupt(100))
	s, _ := newTestStore(t, srv, Config{TailBytes: 1000})
	got, err := s.ReadAtMost(t.Context(), uri, 1<<30)
	want := bytes.Clone(data)
	want[100] ^= 0xff
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%v, or other bytes than the one differ", err)
	}
}
