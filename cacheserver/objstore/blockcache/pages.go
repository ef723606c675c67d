// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package blockcache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/zeebo/xxh3"
)

// A block is stored in the object cache as pages of 64 KiB, the last one shorter, each followed by its checksum: XXH3-64, seeded by
// the block's name and the page's number, little-endian. So a part of a block can be read and checked by itself, and the checksum
// detects corruption in transit, pages of other blocks and pages written by anything else.
const (
	// PageSize is the unit in which a block is checked.
	PageSize = 64 << 10
	sumSize  = 8
)

// extent is the byte range [offset, offset+length) of an object, a block or the block's stored form.
type extent struct {
	offset, length int64
}

func (e extent) end() int64 { return e.offset + e.length }

var errPage = errors.New("a page's checksum is wrong")

// pages encodes and decodes the stored form of a block.
type pages struct {
	seed   uint64
	length int64 // of the block itself
}

func pagesOf(name string, length int64) pages {
	return pages{seed: xxh3.HashString(name), length: length}
}

// size is the stored size of length bytes that start at a page, with their checksums.
func (pages) size(length int64) int64 { return length + (length+PageSize-1)/PageSize*sumSize }

// cover widens a part of the block to whole pages and returns the range of these in the stored form.
func (p pages) cover(part extent) (block, stored extent) {
	first := part.offset / PageSize * PageSize
	end := min((part.end()+PageSize-1)/PageSize*PageSize, p.length)
	block = extent{offset: first, length: end - first}
	return block, extent{offset: p.size(first), length: p.size(block.length)}
}

func (p pages) sum(page []byte, offset int64) uint64 {
	return xxh3.HashSeed(page, p.seed+uint64(offset/PageSize))
}

// read reads the whole pages of the range block, checks them, and copies the bytes of part to buf, which is as long as part.
func (p pages) read(from io.Reader, block, part extent, buf []byte) error {
	page := make([]byte, PageSize+sumSize)
	for at := block.offset; at < block.end(); at += PageSize {
		n := min(PageSize, block.end()-at)
		if _, err := io.ReadFull(from, page[:n+sumSize]); err != nil {
			return fmt.Errorf("page at %d: %w", at, err)
		}
		if binary.LittleEndian.Uint64(page[n:]) != p.sum(page[:n], at) {
			return fmt.Errorf("page at %d: %w", at, errPage)
		}
		skip := max(part.offset-at, 0)
		if skip < n {
			copy(buf[at+skip-part.offset:], page[skip:n])
		}
	}
	return nil
}

// encode returns a reader of the stored form of a block, which must not be changed while it is read.
func (p pages) encode(block []byte) io.Reader {
	var parts []io.Reader
	for at := 0; at < len(block); at += PageSize {
		page := block[at:min(at+PageSize, len(block))]
		sum := binary.LittleEndian.AppendUint64(nil, p.sum(page, int64(at)))
		parts = append(parts, bytes.NewReader(page), bytes.NewReader(sum))
	}
	return io.MultiReader(parts...)
}
