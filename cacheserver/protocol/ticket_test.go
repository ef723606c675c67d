// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"bytes"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/internal/identity"
)

var noon = time.Unix(1_800_000_000, 0)

func someTicket() Ticket {
	return Ticket{
		Dataset: "d", Node: 1, Incarnation: "i", Expires: noon.Add(time.Hour).Unix(), Kind: Epoch, Bounds: assign.Bounds{5, 9},
		Epoch: epoch.Epoch{Rows: 9, Seed: 1<<64 - 1, Shuffle: true, Clump: 2, GlobalBatch: 4, Tail: "keep"},
		Share: epoch.Share{World: 1, Workers: 1}, Columns: []int{2, 0},
		Job: "team-b/train", Claimed: "train", Reader: &identity.Identity{Namespace: "team-b", Account: "default", Job: "train"},
	}
}

func TestTicketRoundTrip(t *testing.T) {
	s := NewSealer([]byte("key"))
	want := someTicket()
	want.Mix = &epoch.Mix{Parts: []epoch.Part{{Rows: 9, Weights: []uint64{1<<62 - 1}}}, Unit: epoch.BatchUnit}
	sealed, err := s.Seal(want)
	if err != nil {
		t.Fatal(err)
	}
	got, err := s.Open(sealed, noon)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestChangedTicket flips every bit of a ticket and truncates it at every position: all results must be rejected.
func TestChangedTicket(t *testing.T) {
	s := NewSealer([]byte("key"))
	sealed, err := s.Seal(someTicket())
	if err != nil {
		t.Fatal(err)
	}
	for bit := range 8 * len(sealed) {
		changed := append([]byte(nil), sealed...)
		changed[bit/8] ^= 1 << (bit % 8)
		if got, err := s.Open(changed, noon); status.Code(err) != codes.Unauthenticated {
			t.Fatalf("bit %d flipped: %+v, %v", bit, got, err)
		}
	}
	for n := range sealed {
		if got, err := s.Open(sealed[:n], noon); status.Code(err) != codes.Unauthenticated {
			t.Fatalf("cut to %d bytes: %+v, %v", n, got, err)
		}
	}
}

func TestTicketRefused(t *testing.T) {
	s := NewSealer([]byte("key"))
	sealed, err := s.Seal(someTicket())
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name   string
		sealer Sealer
		sealed []byte
		now    time.Time
		code   codes.Code
	}{
		{"expired", s, sealed, noon.Add(61 * time.Minute), codes.Unauthenticated},
		{"another key", NewSealer([]byte("other")), sealed, noon, codes.Unauthenticated},
		{"too long", s, make([]byte, MaxBytes+1), noon, codes.InvalidArgument},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := tt.sealer.Open(tt.sealed, tt.now); status.Code(err) != tt.code {
				t.Errorf("error %v, want code %s", err, tt.code)
			}
		})
	}
	wide := someTicket()
	for range MaxBytes {
		wide.Columns = append(wide.Columns, 1)
	}
	if _, err := s.Seal(wide); status.Code(err) != codes.InvalidArgument {
		t.Errorf("a ticket over the limit was sealed, error %v", err)
	}
}

func FuzzOpenTicket(f *testing.F) {
	s := NewSealer([]byte("key"))
	sealed, err := s.Seal(someTicket())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(sealed)
	f.Add([]byte{})
	f.Add([]byte{ticketVersion})
	f.Add([]byte(`{"c":[-1,99],"e":{"Rows":-1}}`))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if got, err := s.Open(raw, noon); err == nil && !cmp.Equal(got, someTicket()) { // each process of go test -fuzz has sealed another one
			t.Fatalf("forged: %+v", got)
		}
		// An authenticated body that is invalid must not cause a crash either.
		forged := s.aead.Seal([]byte{ticketVersion}, nil, raw, []byte{ticketVersion})
		if _, err := s.Open(forged, noon); err != nil && status.Code(err) == codes.Internal {
			t.Fatal(err)
		}
	})
}

// TestTicketHidesItsContent checks that nothing of a ticket can be read by a client.
func TestTicketHidesItsContent(t *testing.T) {
	sealed, err := NewSealer([]byte("key")).Seal(someTicket())
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"team-b", "train", "default", "epoch", `"k"`} {
		if bytes.Contains(sealed, []byte(part)) {
			t.Errorf("%q can be read in a sealed ticket", part)
		}
	}
}
