// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParse(t *testing.T) {
	for line, want := range map[string]struct {
		delay time.Duration
		loss  float64
		good  bool
	}{
		"2.5ms 0.001": {2500 * time.Microsecond, 0.001, true},
		"0us 0":       {0, 0, true},
		"1ms":         {},
		"-1ms 0":      {},
		"1ms 1":       {},
		"fast 0":      {},
	} {
		delay, loss, err := parse(line)
		if delay != want.delay || loss != want.loss || (err == nil) != want.good {
			t.Errorf("%q: %v, %v, %v; want %+v", line, delay, loss, err, want)
		}
	}
}

// TestLink sends numbered packets through a link between two socket pairs: all must arrive in order and not before the delay, and of
// those sent with a loss rate about that fraction must be missing.
func TestLink(t *testing.T) {
	const packets, end, delay = 1000, 1 << 20, 20 * time.Millisecond
	send := func(loss float64) (got []uint64, first time.Duration) {
		from, to := pair(t), pair(t)
		l := newLink(1)
		l.set(delay, loss)
		go func() { _ = l.carry(from[1], to[0]) }()
		begin := time.Now()
		go func() {
			for i := range uint64(packets) {
				if _, err := unix.Write(from[0], binary.NativeEndian.AppendUint64(nil, i)); err != nil {
					t.Error(err)
				}
			}
			for range 50 { // end markers, some of which may be lost
				if _, err := unix.Write(from[0], binary.NativeEndian.AppendUint64(nil, end)); err != nil {
					t.Error(err)
				}
			}
		}()
		for b := make([]byte, 8); ; {
			if _, err := unix.Read(to[1], b); err != nil {
				t.Fatal(err)
			}
			if len(got) == 0 {
				first = time.Since(begin)
			}
			i := binary.NativeEndian.Uint64(b)
			if i == end {
				return got, first
			}
			got = append(got, i)
		}
	}

	got, first := send(0)
	if len(got) != packets || got[0] != 0 || got[packets-1] != packets-1 {
		t.Errorf("%d packets came of %d", len(got), packets)
	}
	if first < delay {
		t.Errorf("the first packet came after %v, want %v at least", first, delay)
	}
	if got, _ = send(0.1); len(got) < 850 || len(got) > 950 { // seeded
		t.Errorf("%d packets of %d came, want about 900", len(got), packets)
	}
	for i := 1; i < len(got); i++ {
		if got[i] <= got[i-1] {
			t.Fatalf("packet %d came after %d", got[i], got[i-1])
		}
	}
}

// pair returns two connected sockets that preserve packet boundaries, as a TUN device does.
func pair(t *testing.T) [2]int {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET, 0)
	if err != nil {
		t.Fatal(err)
	}
	return fds
}
