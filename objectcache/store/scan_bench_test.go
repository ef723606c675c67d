// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// BenchmarkScan rebuilds the index of a million objects: go test -bench Scan -benchtime 3x ./objectcache/store. The files
// are empty, which makes no difference since a scan opens none. Creating them takes a minute.
func BenchmarkScan(b *testing.B) {
	const objects = 1_000_000
	dir := b.TempDir()
	limits := Limits{Total: 1 << 40, Quotas: map[string]int64{"b": 1 << 40}}
	s, err := Open(Config{Dir: dir, Limits: limits})
	if err != nil {
		b.Fatal(err)
	}
	for i := range 256 {
		if err := os.MkdirAll(filepath.Join(dir, "objects", "b", fmt.Sprintf("%02x", i)), 0o700); err != nil {
			b.Fatal(err)
		}
	}
	for i := range uint64(objects) {
		var id identity
		binary.BigEndian.PutUint64(id[:], (i+1)*0x9E3779B97F4A7C15)
		if err := os.WriteFile(s.path("b", id), nil, 0o600); err != nil {
			b.Fatal(err)
		}
	}
	s.Close()
	before := cpu(b)
	for b.Loop() {
		s, err := Open(Config{Dir: dir, Limits: limits})
		if err != nil {
			b.Fatal(err)
		}
		if err := s.Scan(b.Context()); err != nil {
			b.Fatal(err)
		}
		if got := s.Stats()[0].Objects; got != objects {
			b.Fatalf("%d objects, want %d", got, objects)
		}
		s.Close()
	}
	b.ReportMetric((cpu(b)-before).Seconds()/float64(b.N), "CPU-s/op") // unlike wall time, independent of other load
}

// cpu is the CPU time of this process.
func cpu(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
