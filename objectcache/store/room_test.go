// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// kib returns data whose file has k KiB, for a bucket with a name of one letter and a key of three.
func kib(k int) string { return strings.Repeat("d", k<<10-fixedSize-len("b/abc")) }

// present lists the keys of a bucket that exist, looking only at the index.
func present(s *Store, bucket string, keys ...string) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var there []string
	for _, key := range keys {
		if s.index.find(identify(bucket, key)) != nil {
			there = append(there, key)
		}
	}
	return there
}

func TestEvictionInABucketIsByUse(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), one(3<<10))
	for _, key := range []string{"aaa", "bbb", "ccc"} {
		put(t, s, "b", key, kib(1))
	}
	get(t, s, "b", "aaa")
	put(t, s, "b", "ddd", kib(1))
	if got := fmt.Sprint(present(s, "b", "aaa", "bbb", "ccc", "ddd")); got != "[aaa ccc ddd]" {
		t.Errorf("left are %s, want all but bbb, which was not used for longest", got)
	}
	put(t, s, "b", "eee", kib(2))
	if got := fmt.Sprint(present(s, "b", "aaa", "ccc", "ddd", "eee")); got != "[ddd eee]" {
		t.Errorf("left are %s, want [ddd eee]", got)
	}
	if b := statsOf(t, s, "b"); b.Evicted != 3 || b.EvictedBytes != 3<<10 || b.Bytes != 3<<10 {
		t.Errorf("stats %+v, want 3 objects of 1 KiB evicted and 3 KiB there", b)
	}
	accounted(t, s)
}

func TestAtTheTotalTheBucketFurthestOverItsShareGives(t *testing.T) {
	t.Parallel()
	// Shares of the 8 KiB: a has 6, b has 2.
	s := open(t, t.TempDir(), Limits{Total: 8 << 10, Quotas: map[string]int64{"a": 12 << 10, "b": 4 << 10}})
	for i := range 5 {
		put(t, s, "a", fmt.Sprintf("ab%d", i), kib(1))
	}
	for i := range 3 {
		put(t, s, "b", fmt.Sprintf("ab%d", i), kib(1))
	}
	put(t, s, "a", "new", kib(1)) // b is 1 KiB above its share, a is 1 KiB below it
	if a, b := statsOf(t, s, "a"), statsOf(t, s, "b"); a.Objects != 6 || b.Objects != 2 {
		t.Errorf("a has %d objects and b %d, want 6 and 2", a.Objects, b.Objects)
	}
	put(t, s, "b", "new", kib(1)) // both are at their shares: either may be evicted from
	if a, b := statsOf(t, s, "a"), statsOf(t, s, "b"); a.Bytes+b.Bytes > 8<<10 {
		t.Errorf("%d bytes in all, want at most %d", a.Bytes+b.Bytes, 8<<10)
	}
	accounted(t, s)
}

func TestNoRoomBesideWhatIsBeingWritten(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), one(4<<10))
	w, err := s.Create("b", "abc", 3<<10)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	if _, err := s.Create("b", "def", 2<<10); !errors.Is(err, ErrNoRoom) {
		t.Errorf("error %v, want %v", err, ErrNoRoom)
	}
	w.Abort()
	put(t, s, "b", "def", kib(2))
	accounted(t, s)
}

func TestAnnouncedButNotSentEvictsLittle(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), one(64*mib))
	for i := range 30 {
		put(t, s, "b", fmt.Sprintf("a%02d", i), strings.Repeat("d", 2*mib))
	}
	w, err := s.Create("b", "big", 60*mib)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Abort()
	if b := statsOf(t, s, "b"); b.Evicted > 4 {
		t.Errorf("%d objects of 2 MiB were evicted for one of which nothing has come, want at most 4", b.Evicted)
	}
}

func TestLimitsThatShrink(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), Limits{Total: mib, Quotas: map[string]int64{"a": mib, "b": mib}})
	for _, bucket := range []string{"a", "b"} {
		for i := range 4 {
			put(t, s, bucket, fmt.Sprintf("ab%d", i), kib(1))
		}
	}
	s.SetLimits(Limits{Total: mib, Quotas: map[string]int64{"b": 2 << 10}})
	stats := s.Stats()
	if len(stats) != 1 || stats[0].Bucket != "b" || stats[0].Objects != 2 {
		t.Errorf("%+v, want bucket b alone, with 2 objects", stats)
	}
	if err := tryPut(s, "a", "abc", "d"); !errors.Is(err, ErrTooLarge) {
		t.Errorf("put into a bucket that was taken out: %v, want %v", err, ErrTooLarge)
	}
	s.SetLimits(Limits{Total: 1 << 10, Quotas: map[string]int64{"b": 2 << 10}})
	if b := statsOf(t, s, "b"); b.Objects != 1 {
		t.Errorf("%d objects under a total of one, want 1", b.Objects)
	}
	accounted(t, s)
}

func TestAllAtOnce(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), Limits{Total: 256 << 10, Quotas: map[string]int64{"a": 192 << 10, "b": 192 << 10}})
	seed := seedtest.Seed(t)
	var hits atomic.Int64
	var group sync.WaitGroup
	for worker := range 8 {
		random := rand.New(rand.NewPCG(seed, uint64(worker)))
		group.Go(func() {
			for range 400 {
				bucket, key := string("ab"[random.IntN(2)]), fmt.Sprintf("k%02d", random.IntN(40))
				// Every object's data names its key and writer and is uniform, so a mixture would show.
				data := strings.Repeat(bucket+key+string(rune('A'+worker)), 1+random.IntN(4000))
				var err error
				switch random.IntN(8) {
				case 0:
					err = s.Delete(bucket, key)
				case 1, 2, 3:
					err = tryPut(s, bucket, key, data)
				default:
					got := get(t, s, bucket, key)
					if got == "miss" {
						continue
					}
					hits.Add(1)
					if unit := got[:5]; unit[:4] != bucket+key || got != strings.Repeat(unit, len(got)/5) {
						t.Errorf("%s/%s holds %.20q...", bucket, key, got)
					}
				}
				if err != nil && !errors.Is(err, ErrNoRoom) {
					t.Errorf("%s/%s: %v", bucket, key, err)
				}
			}
		})
	}
	group.Wait()
	if hits.Load() == 0 {
		t.Error("no read was a hit: the test shows nothing")
	}
	if s.Failures() != 0 {
		t.Errorf("%d failures of the disk, want none", s.Failures())
	}
	var bytes int64
	for _, b := range s.Stats() {
		bytes += b.Bytes
		if b.Bytes > b.Quota {
			t.Errorf("bucket %s has %d bytes, over its quota %d", b.Bucket, b.Bytes, b.Quota)
		}
	}
	if bytes > 256<<10 {
		t.Errorf("%d bytes in all, over the total", bytes)
	}
	accounted(t, s)
}

func TestIndexIsSmall(t *testing.T) { // not parallel: it measures the heap
	const objects, most = 1 << 20, 100
	before := heap()
	x := newIndex()
	l := x.bucket("b")
	l.quota = 1 << 40
	for i := range uint64(objects) {
		x.add(numbered(i, l))
	}
	each := float64(heap()-before) / objects
	t.Logf("%.1f bytes an object", each)
	if each > most {
		t.Errorf("%.1f bytes an object, want at most %d", each, most)
	}
	for i := range uint64(objects) { // removed entries are reused
		if _, ok := x.remove(numbered(i, l).id); !ok {
			t.Fatalf("object %d is not in the index", i)
		}
		x.add(numbered(i+objects, l))
	}
	if x.next != objects+1 || l.objects != objects {
		t.Errorf("%d entries for %d objects, want %d for %d", x.next-1, l.objects, objects, objects)
	}
}

// numbered returns an entry whose identity is distributed like a hash.
func numbered(i uint64, l *bucketState) entry {
	e := entry{size: 1, bucket: l.number}
	binary.LittleEndian.PutUint64(e.id[:], i*0x9E3779B97F4A7C15)
	return e
}

func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
