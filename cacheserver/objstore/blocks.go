// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"
)

const (
	// blockSize is the unit in which objects are kept in the object cache.
	blockSize = 8 << 20
	// restTime is how long the object cache is left alone after it failed.
	restTime = 10 * time.Second
)

// blocks reads remote objects through the object cache. It is fail-open: whatever the object cache does not give, the
// object's own store does, and an object cache that fails is not asked for a while. It may be shared.
type blocks struct {
	client  *cacheClient
	stats   *counters
	now     func() time.Time // replaced by tests
	resting atomic.Int64     // Unix nanoseconds until which the object cache is left alone
	fetches singleflight.Group
}

func newBlocks(cfg ObjectCache, stats *counters) *blocks {
	return &blocks{client: newCacheClient(cfg), stats: stats, now: time.Now}
}

// keeps says whether an object may be read through the object cache: if a tag names its version.
func (b *blocks) keeps(o *object) bool {
	return b != nil && o.tag != "" && !strings.HasPrefix(o.tag, "W/")
}

// read fills buf from offset off of an object.
func (b *blocks) read(ctx context.Context, o *object, buf []byte, off int64) error {
	for len(buf) > 0 {
		block := blockAt(o, off)
		n := min(int64(len(buf)), block.end()-off)
		if err := b.part(ctx, o, block, buf[:n], off); err != nil {
			return err
		}
		buf, off = buf[n:], off+n
	}
	return nil
}

// blockAt is the block that an offset lies in.
func blockAt(o *object, off int64) Range {
	first := off / blockSize * blockSize
	return Range{Offset: first, Length: min(blockSize, o.size-first)}
}

// blockName names a block: the object, its version, the block's number. A version's bytes never change, so nothing needs
// to be taken back.
func blockName(o *object, block Range) string {
	return fmt.Sprintf("%s#%s#%d", o.uri, strings.Trim(o.tag, `"`), block.Offset/blockSize)
}

// part fills buf from offset off, all within one block: from the object cache, or else by reading the block from its store
// and leaving it in the object cache for the next one. Many that miss a block at a time read it once.
func (b *blocks) part(ctx context.Context, o *object, block Range, buf []byte, off int64) error {
	if b.now().UnixNano() < b.resting.Load() {
		return o.fetch(ctx, buf, off)
	}
	name := blockName(o, block)
	form := pagesOf(name, block.Length)
	want := Range{Offset: off - block.Offset, Length: int64(len(buf))}
	err := b.get(ctx, name, form, want, buf)
	if err == nil {
		return nil
	}
	if !errors.Is(err, errMiss) && !errors.Is(err, errPage) {
		return o.fetch(ctx, buf, off) // nobody would take the block
	}
	own := false
	data, err, _ := b.fetches.Do(name, func() (any, error) {
		own = true
		return b.fetch(ctx, o, name, form, block)
	})
	if err != nil && !own {
		return o.fetch(ctx, buf, off) // another's failure may be its alone: it may have been told to stop
	}
	if err != nil {
		return err
	}
	copy(buf, data.([]byte)[want.Offset:]) //nolint:forcetypeassert // the flight returns nothing else
	return nil
}

// fetch reads a whole block from the object's store and leaves it in the object cache. Somebody may have done so between
// this caller's miss and its turn, so the object cache is asked once more.
func (b *blocks) fetch(ctx context.Context, o *object, name string, form pages, block Range) ([]byte, error) {
	data := make([]byte, block.Length)
	if b.get(ctx, name, form, Range{Length: block.Length}, data) == nil {
		return data, nil
	}
	b.stats.cacheMisses.Add(1)
	if err := o.fetch(ctx, data, block.Offset); err != nil {
		return nil, err
	}
	b.failed(ctx, b.client.put(ctx, name, form, data))
	return data, nil
}

// get fills buf with a part of a block from the object cache. Its errors are cacheClient.get's.
func (b *blocks) get(ctx context.Context, name string, form pages, part Range, buf []byte) error {
	err := b.client.get(ctx, name, form, part, buf)
	if err == nil {
		b.stats.cacheHits.Add(1)
		b.stats.cacheBytes.Add(part.Length)
		return nil
	}
	if !errors.Is(err, errMiss) {
		b.failed(ctx, err)
	}
	return err
}

// failed counts a failure of the object cache and leaves it alone for a while; damage of one block is no reason for that,
// nor is one node of it that is away or full.
// It is no failure that ctx has ended.
func (b *blocks) failed(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	b.stats.cacheFailures.Add(1)
	if !errors.Is(err, errPage) && !errors.Is(err, errAway) {
		b.resting.Store(b.now().Add(restTime).UnixNano())
	}
}
