// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package maglev

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestTableIsEnvoys compares with the tables in Envoy's own tests: test/extensions/load_balancing_policies/maglev/maglev_lb_test.cc,
// Basic and BasicWithHostName.
func TestTableIsEnvoys(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		hosts []string
		want  []int32
	}{
		"addresses": {
			hosts: []string{"127.0.0.1:90", "127.0.0.1:91", "127.0.0.1:92", "127.0.0.1:93", "127.0.0.1:94", "127.0.0.1:95"},
			want:  []int32{2, 4, 0, 1, 5, 0, 3},
		},
		"hash keys": {
			hosts: []string{"90", "91", "92", "93", "94", "95"},
			want:  []int32{2, 5, 0, 3, 4, 1, 0},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(test.want, New(test.hosts, 7).slots); diff != "" {
				t.Error(diff)
			}
			backward := slices.Clone(test.hosts)
			slices.Reverse(backward)
			table := New(backward, 7)
			for slot, host := range test.want {
				if got := backward[table.Host(uint64(slot))]; got != test.hosts[host] {
					t.Errorf("hosts given backward: slot %d has %s, want %s", slot, got, test.hosts[host])
				}
			}
		})
	}
}

func TestNoHosts(t *testing.T) {
	t.Parallel()
	if got := New(nil, DefaultSize).Host(12345); got != -1 {
		t.Errorf("host of an empty table = %d, want -1", got)
	}
}

// fleet returns the names of n hosts.
func fleet(n int) []string {
	hosts := make([]string, n)
	for i := range hosts {
		hosts[i] = fmt.Sprintf("node-%03d", i)
	}
	return hosts
}

func TestLoadIsEven(t *testing.T) {
	t.Parallel()
	table := New(fleet(55), DefaultSize)
	counts := make([]int, 55)
	for hash := range uint64(DefaultSize) {
		counts[table.Host(hash)]++
	}
	if least, most := slices.Min(counts), slices.Max(counts); float64(most) > 1.01*float64(least) {
		t.Errorf("hosts have %d to %d slots, want at most 1 %% apart", least, most)
	}
}

func TestFewKeysMoveWhenAHostGoes(t *testing.T) {
	t.Parallel()
	hosts := fleet(55)
	before := New(hosts, DefaultSize)
	for gone := range hosts {
		left := slices.Delete(slices.Clone(hosts), gone, gone+1)
		after := New(left, DefaultSize)
		moved := 0
		for hash := range uint64(DefaultSize) {
			if was := before.Host(hash); was != gone && hosts[was] != left[after.Host(hash)] {
				moved++
			}
		}
		if share := float64(moved) / DefaultSize; share >= 0.01 {
			t.Errorf("without %s %.2f %% of the other hosts' slots moved, want under 1 %%", hosts[gone], 100*share)
		}
	}
}
