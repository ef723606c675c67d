// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/zeebo/xxh3"
)

// A block is kept in the object cache as pages of 64 KiB, the last one shorter, each followed by its checksum: XXH3-64,
// seeded by the block's name and the page's number, little-endian. So a part of a block can be read and checked alone, and
// neither damage on the way, nor another block's page, nor a page that something else put there passes for this one.
const (
	pageSize = 64 << 10
	sumSize  = 8
)

var errPage = errors.New("a page's checksum is wrong")

// pages is a block's form in the object cache.
type pages struct {
	seed   uint64
	length int64 // of the block itself
}

func pagesOf(name string, length int64) pages {
	return pages{seed: xxh3.HashString(name), length: length}
}

// size is what length bytes from a page's beginning on take with their checksums.
func (pages) size(length int64) int64 { return length + (length+pageSize-1)/pageSize*sumSize }

// cover widens a part of the block to whole pages and says where these are in the stored form.
func (p pages) cover(part Range) (block, stored Range) {
	first := part.Offset / pageSize * pageSize
	end := min((part.end()+pageSize-1)/pageSize*pageSize, p.length)
	block = Range{Offset: first, Length: end - first}
	return block, Range{Offset: p.size(first), Length: p.size(block.Length)}
}

func (p pages) sum(page []byte, offset int64) uint64 {
	return xxh3.HashSeed(page, p.seed+uint64(offset/pageSize))
}

// read reads whole pages, those of block, and copies what of them lies in part to buf, which is as long as part.
func (p pages) read(from io.Reader, block, part Range, buf []byte) error {
	page := make([]byte, pageSize+sumSize)
	for at := block.Offset; at < block.end(); at += pageSize {
		n := min(pageSize, block.end()-at)
		if _, err := io.ReadFull(from, page[:n+sumSize]); err != nil {
			return fmt.Errorf("page at %d: %w", at, err)
		}
		if binary.LittleEndian.Uint64(page[n:]) != p.sum(page[:n], at) {
			return fmt.Errorf("page at %d: %w", at, errPage)
		}
		skip := max(part.Offset-at, 0)
		if skip < n {
			copy(buf[at+skip-part.Offset:], page[skip:n])
		}
	}
	return nil
}

// encode reads as the stored form of a block, which must stay as it is meanwhile.
func (p pages) encode(block []byte) io.Reader {
	var parts []io.Reader
	for at := 0; at < len(block); at += pageSize {
		page := block[at:min(at+pageSize, len(block))]
		sum := binary.LittleEndian.AppendUint64(nil, p.sum(page, int64(at)))
		parts = append(parts, bytes.NewReader(page), bytes.NewReader(sum))
	}
	return io.MultiReader(parts...)
}
