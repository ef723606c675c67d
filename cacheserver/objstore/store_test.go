// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/test/kit/s3test"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// clock is a clock that only sleep advances.
type clock struct {
	mu     sync.Mutex
	time   time.Time
	pauses []time.Duration
}

func (c *clock) now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.time
}

func (c *clock) sleep(ctx context.Context, d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.time = c.time.Add(d)
	c.pauses = append(c.pauses, d)
	return ctx.Err()
}

// newTestStore returns a Store that connects to srv and does not wait between attempts.
func newTestStore(t *testing.T, srv *s3test.Server, cfg Config) (*Store, *clock) {
	t.Helper()
	cfg, err := cfg.WithProperties(srv.Properties())
	if err != nil {
		t.Fatal(err)
	}
	s := New(cfg)
	c := &clock{time: time.Unix(0, 0)}
	s.now, s.sleep, s.random = c.now, c.sleep, func() float64 { return 0 }
	t.Cleanup(s.Idle)
	return s, c
}

// pattern returns n pseudo-random bytes, always the same.
func pattern(n int) []byte {
	b := make([]byte, n)
	seed := [32]byte{byte(n), byte(n >> 8)}
	_, _ = rand.NewChaCha8(seed).Read(b) // never fails
	return b
}

func open(t *testing.T, s *Store, uri string) *File {
	t.Helper()
	f, err := s.Open(t.Context(), uri)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// ranges lists the Range headers of the GETs that srv received.
func ranges(srv *s3test.Server) []string {
	var got []string
	for _, r := range srv.Requests() {
		got = append(got, r.Range)
	}
	return got
}

func TestOpenBringsSizeAndTailInOneRequest(t *testing.T) {
	tests := []struct {
		name  string
		size  int
		want  []string // requests of Open
		bytes int64    // of them
	}{
		{name: "empty", size: 0, want: []string{"bytes=-1000", ""}},
		{name: "one byte", size: 1, want: []string{"bytes=-1000"}, bytes: 1},
		{name: "smaller than the tail", size: 999, want: []string{"bytes=-1000"}, bytes: 999},
		{name: "as long as the tail", size: 1000, want: []string{"bytes=-1000"}, bytes: 1000},
		{name: "longer", size: 5000, want: []string{"bytes=-1000"}, bytes: 1000},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			srv := s3test.Start(t)
			data := pattern(tt.size)
			s, _ := newTestStore(t, srv, Config{TailBytes: 1000})
			f := open(t, s, srv.Put("bucket", "a/b c+%2F=.parquet", data))
			if f.Size() != int64(tt.size) {
				t.Errorf("size %d, want %d", f.Size(), tt.size)
			}
			tail := make([]byte, tt.bytes)
			if n, err := f.ReadAt(tail, int64(tt.size)-tt.bytes); err != nil || n != len(tail) {
				t.Fatalf("ReadAt of the tail: %d bytes, %v", n, err)
			}
			if !bytes.Equal(tail, data[int64(tt.size)-tt.bytes:]) {
				t.Error("the tail's bytes differ")
			}
			if d := cmp.Diff(tt.want, ranges(srv)); d != "" {
				t.Errorf("requests (-want +got):\n%s", d)
			}
			if got := f.Buffered(); got != tt.bytes {
				t.Errorf("Buffered %d, want %d", got, tt.bytes)
			}
			st := s.Stats()
			if st.Bytes != tt.bytes || st.Requests != int64(len(tt.want)) || st.Retries != 0 || st.Failures != 0 || st.Waited <= 0 {
				t.Errorf("stats %+v", st)
			}
			info, err := f.Stat()
			if err != nil || info.Name() != "b c+%2F=.parquet" || info.Size() != int64(tt.size) || info.ModTime().Year() != 2026 {
				t.Errorf("Stat: %v %v %v, %v", info.Name(), info.Size(), info.ModTime(), err)
			}
		})
	}
}

func TestReadAll(t *testing.T) {
	for name, size := range map[string]int{"empty": 0, "within the tail": 1000, "in parts": 10_000} {
		t.Run(name, func(t *testing.T) {
			srv := s3test.Start(t)
			data := pattern(size)
			s, _ := newTestStore(t, srv, Config{TailBytes: 1000, PartBytes: 4000})
			got, err := s.ReadAtMost(t.Context(), srv.Put("bucket", "key", data), 1<<30)
			if err != nil || !bytes.Equal(got, data) {
				t.Fatalf("%d bytes, %v; want the %d bytes put", len(got), err, size)
			}
			if n := s.Stats().Bytes; n != int64(size) {
				t.Errorf("%d bytes transferred for an object of %d", n, size)
			}
		})
	}
}

func TestPrefetchJoinsAndSplits(t *testing.T) {
	const size = 100_000
	cfg := Config{TailBytes: 1000, GapBytes: 100, PartBytes: 5000}
	tests := []struct {
		name   string
		ranges []Range
		want   []string // requests after Open, sorted by their start
	}{
		{name: "none"},
		{name: "empty range", ranges: []Range{{5, 0}}},
		{name: "one", ranges: []Range{{0, 10}}, want: []string{"bytes=0-9"}},
		{name: "gap small enough", ranges: []Range{{210, 90}, {0, 110}}, want: []string{"bytes=0-299"}},
		{name: "gap too large", ranges: []Range{{0, 110}, {211, 89}}, want: []string{"bytes=0-109", "bytes=211-299"}},
		{name: "overlapping and twice", ranges: []Range{{0, 50}, {20, 50}, {20, 50}}, want: []string{"bytes=0-69"}},
		{name: "inside another", ranges: []Range{{0, 500}, {20, 50}, {520, 1}}, want: []string{"bytes=0-520"}},
		{name: "split in equal parts", ranges: []Range{{100, 11_000}}, want: []string{"bytes=100-3766", "bytes=3767-7433", "bytes=7434-11099"}},
		{name: "just one part", ranges: []Range{{100, 5000}}, want: []string{"bytes=100-5099"}},
		{name: "in the tail already", ranges: []Range{{99_500, 500}}},
		{name: "reaches into the tail", ranges: []Range{{98_900, 1100}}, want: []string{"bytes=98900-98999"}},
		{name: "column chunks and footer", ranges: []Range{{4, 1000}, {1004, 2000}, {3010, 500}, {50_000, 1000}, {99_990, 10}},
			want: []string{"bytes=4-3509", "bytes=50000-50999"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			srv := s3test.Start(t)
			data := pattern(size)
			s, _ := newTestStore(t, srv, cfg)
			f := open(t, s, srv.Put("bucket", "key", data))
			srv.Forget()
			if err := f.Prefetch(t.Context(), tt.ranges); err != nil {
				t.Fatal(err)
			}
			got := ranges(srv)
			sortRanges(got)
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("requests (-want +got):\n%s", d)
			}
			srv.Forget()
			for _, r := range tt.ranges {
				p := make([]byte, r.Length)
				if _, err := f.ReadAt(p, r.Offset); err != nil {
					t.Fatal(err)
				}
				if !bytes.Equal(p, data[r.Offset:r.end()]) {
					t.Errorf("bytes of %v differ", r)
				}
			}
			if n := len(srv.Requests()); n != 0 {
				t.Errorf("%d requests for bytes in memory", n)
			}
		})
	}
}

func TestDropForgets(t *testing.T) {
	srv := s3test.Start(t)
	data := pattern(10_000)
	s, _ := newTestStore(t, srv, Config{TailBytes: 1000})
	f := open(t, s, srv.Put("bucket", "key", data))
	if err := f.Prefetch(t.Context(), []Range{{0, 2000}}); err != nil {
		t.Fatal(err)
	}
	if got := f.Buffered(); got != 3000 {
		t.Errorf("Buffered %d, want 3000", got)
	}
	f.Drop()
	if got := f.Buffered(); got != 0 {
		t.Errorf("Buffered %d after Drop", got)
	}
	srv.Forget()
	p := make([]byte, 10)
	if _, err := f.ReadAt(p, 5); err != nil || !bytes.Equal(p, data[5:15]) {
		t.Errorf("%v, %v", p, err)
	}
	if d := cmp.Diff([]string{"bytes=5-14"}, ranges(srv)); d != "" {
		t.Error(d)
	}
}

func TestPrefetchOutsideTheObject(t *testing.T) {
	srv := s3test.Start(t)
	s, _ := newTestStore(t, srv, Config{})
	f := open(t, s, srv.Put("bucket", "key", pattern(100)))
	for _, r := range []Range{{90, 11}, {-1, 5}, {5, -1}, {101, 0}, {1 << 62, 1 << 62}} {
		err := f.Prefetch(t.Context(), []Range{r})
		if err == nil || !strings.Contains(err.Error(), "outside the object's 100 bytes") {
			t.Errorf("%v: %v", r, err)
		}
	}
}

// TestReadAtRandom compares random reads, prefetches and drops with the object's bytes.
func TestReadAtRandom(t *testing.T) {
	r := seedtest.New(t)
	srv := s3test.Start(t)
	data := pattern(200_000)
	s, _ := newTestStore(t, srv, Config{TailBytes: 7000, GapBytes: 500, PartBytes: 9000})
	f := open(t, s, srv.Put("bucket", "key", data))
	for range 300 {
		off := r.Int64N(int64(len(data)) + 10)
		length := r.Int64N(20_000)
		switch r.IntN(8) {
		case 0:
			f.Drop()
		case 1, 2:
			off = min(off, int64(len(data)))
			if err := f.Prefetch(t.Context(), []Range{{off, min(length, int64(len(data))-off)}, {0, r.Int64N(3000)}}); err != nil {
				t.Fatal(err)
			}
		default:
			checkReadAt(t, f, data, off, length)
		}
	}
}

// checkReadAt compares ReadAt, and Near if it has the bytes, with bytes.Reader as the reference.
func checkReadAt(t *testing.T, f *File, data []byte, off, length int64) {
	t.Helper()
	got, want := make([]byte, length), make([]byte, length)
	wantN, wantErr := bytes.NewReader(data).ReadAt(want, off)
	if length == 0 {
		wantErr = nil // bytes.Reader returns io.EOF at the end even for an empty read
	}
	n, err := f.ReadAt(got, off)
	if n != wantN || !errors.Is(err, wantErr) || !bytes.Equal(got[:n], want[:n]) {
		t.Fatalf("ReadAt(%d bytes, %d) = %d, %v; want %d, %v, or the bytes differ", length, off, n, err, wantN, wantErr)
	}
	if near := f.Near(off, length); !bytes.HasPrefix(want[:wantN], near) {
		t.Fatalf("Near(%d, %d) has other bytes", off, length)
	}
}

func TestReadAhead(t *testing.T) {
	srv := s3test.Start(t)
	data := pattern(3 << 20)
	s, _ := newTestStore(t, srv, Config{TailBytes: 1000})
	f := open(t, s, srv.Put("bucket", "key", data))
	got, err := io.ReadAll(io.MultiReader(iotestSmall{f}, f))
	if err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
	want := []string{"bytes=-1000", "bytes=0-262143", "bytes=262144-786431", "bytes=786432-1835007", "bytes=1835008-3144727"}
	if d := cmp.Diff(want, ranges(srv)); d != "" {
		t.Errorf("requests (-want +got):\n%s", d)
	}
	if pos, err := f.Seek(-5, io.SeekEnd); err != nil || pos != int64(len(data)-5) {
		t.Errorf("Seek: %d, %v", pos, err)
	}
	if end, err := io.ReadAll(f); err != nil || !bytes.Equal(end, data[len(data)-5:]) {
		t.Errorf("after Seek: %v, %v", end, err)
	}
	if _, err := f.Seek(-1, io.SeekStart); err == nil {
		t.Error("Seek before the start is no error")
	}
}

// iotestSmall reads at most 1000 bytes at a time.
type iotestSmall struct{ r io.Reader }

func (s iotestSmall) Read(p []byte) (int, error) { return s.r.Read(p[:min(len(p), 1000)]) }

func TestConcurrentReaders(t *testing.T) {
	srv := s3test.Start(t)
	data := pattern(500_000)
	s, _ := newTestStore(t, srv, Config{TailBytes: 1000, PartBytes: 10_000, Concurrency: 4})
	f := open(t, s, srv.Put("bucket", "key", data))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 0))
			for range 20 {
				off, length := r.Int64N(400_000), r.Int64N(100_000)
				if err := f.Prefetch(t.Context(), []Range{{off, length}}); err != nil {
					t.Error(err)
				}
				p := make([]byte, length)
				if _, err := f.ReadAt(p, off); err != nil || !bytes.Equal(p, data[off:off+length]) {
					t.Errorf("%d bytes at %d: %v, or they differ", length, off, err)
				}
				if i == 0 {
					f.Drop()
				}
			}
		})
	}
	wg.Wait()
	if n, requests := srv.Connections(), len(srv.Requests()); n > requests/10 {
		t.Errorf("%d connections for %d requests, 4 at a time: they are not used again", n, requests)
	}
}

func TestManyBucketsOneClient(t *testing.T) {
	srv := s3test.Start(t)
	s, _ := newTestStore(t, srv, Config{})
	for _, uri := range []string{srv.Put("one", "k", []byte("1")), srv.Put("two", "k", []byte("2")), "s3a://one/k", "s3n://two/k"} {
		if _, err := s.ReadAtMost(t.Context(), uri, 1<<30); err != nil {
			t.Errorf("%s: %v", uri, err)
		}
	}
	if n := srv.Connections(); n != 1 {
		t.Errorf("%d connections for reads one after the other", n)
	}
}
