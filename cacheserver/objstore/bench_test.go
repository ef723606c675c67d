// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"testing"

	"github.com/kubeflow/datacache/test/kit/s3test"
)

// BenchmarkRead compares loading column chunks through Prefetch with one request per chunk, as a Parquet reader does by itself. The
// server runs in the same process, so its CPU time is included.
func BenchmarkRead(b *testing.B) {
	const size, chunks = 64 << 20, 64
	srv := s3test.Start(b)
	uri := srv.Put("bucket", "key", pattern(size))
	columns := split(Range{Length: size}, size/chunks)
	for name, prefetch := range map[string]bool{"prefetched": true, "a request a chunk": false} {
		b.Run(name, func(b *testing.B) {
			cfg, err := Config{}.WithProperties(srv.Properties())
			if err != nil {
				b.Fatal(err)
			}
			s := New(cfg)
			b.Cleanup(s.Idle)
			b.SetBytes(size)
			for b.Loop() {
				f, err := s.Open(b.Context(), uri)
				if err != nil {
					b.Fatal(err)
				}
				if prefetch {
					err = f.Prefetch(b.Context(), columns)
				}
				for _, c := range columns {
					if err == nil {
						_, err = f.ReadAt(make([]byte, c.Length), c.Offset)
					}
				}
				if err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(s.Stats().Requests)/float64(b.N), "requests/op")
		})
	}
}
