// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package pagecrc checks the CRC-32 that Parquet pages may carry (Parquet format, PageHeader.crc).
//
// Spark and other Java writers put one on every page, pyarrow on request. arrow-go's reader passes over them,
// so a byte that a store or a wire changed would become a wrong value wherever it still decodes.
package pagecrc

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/apache/thrift/lib/go/thrift"
)

// ErrMismatch is that a page's bytes are not those that were written.
var ErrMismatch = errors.New("the page's checksum does not match: its bytes were changed in the store or on the way")

const (
	firstGuess = 4 << 10 // of a header; statistics can make it longer
	mostHeader = 16 << 20
	step       = 256 << 10 // read at a time
)

// Check reads the pages of a column chunk, which lies at [off, off+length), and compares each page's bytes
// with its CRC. A column chunk whose first page has none has none at all: only that page's header is read.
// The error names the page's offset in the file.
func Check(ctx context.Context, r io.ReaderAt, off, length int64) error {
	end := off + length
	buf := make([]byte, step)
	for at := off; at < end; {
		h, size, err := readHeader(ctx, r, at, end)
		if err != nil {
			return fmt.Errorf("page at offset %d: %w", at, err)
		}
		if !h.hasCRC {
			return nil
		}
		body := at + size
		if h.size < 0 || body+h.size > end {
			return fmt.Errorf("page at offset %d: %d bytes, more than its column chunk has", at, h.size)
		}
		sum, err := checksum(r, body, h.size, buf)
		if err != nil {
			return fmt.Errorf("page at offset %d: %w", at, err)
		}
		if sum != h.crc {
			return fmt.Errorf("page at offset %d: %w", at, ErrMismatch)
		}
		at = body + h.size
	}
	return nil
}

func checksum(r io.ReaderAt, off, length int64, buf []byte) (uint32, error) {
	h := crc32.NewIEEE()
	_, err := io.CopyBuffer(h, io.NewSectionReader(r, off, length), buf)
	return h.Sum32(), err
}

// header is what matters here of a PageHeader.
type header struct {
	size   int64 // of the page as it lies in the file
	crc    uint32
	hasCRC bool
}

// readHeader reads the header at an offset and tells its length.
func readHeader(ctx context.Context, r io.ReaderAt, at, end int64) (header, int64, error) {
	for guess := int64(firstGuess); ; guess *= 8 {
		text := make([]byte, min(guess, end-at))
		if _, err := r.ReadAt(text, at); err != nil && !errors.Is(err, io.EOF) {
			return header{}, 0, err
		}
		h, size, err := parseHeader(ctx, text)
		if err == nil || guess >= end-at || guess >= mostHeader {
			return h, size, err
		}
	}
}

// The fields of a PageHeader, by their Thrift ids.
const (
	fieldCompressedSize = 3
	fieldCRC            = 4
)

// parseHeader reads a PageHeader in Thrift's compact protocol from the front of text.
func parseHeader(ctx context.Context, text []byte) (header, int64, error) {
	in := &thrift.TMemoryBuffer{Buffer: bytes.NewBuffer(text)}
	p := thrift.NewTCompactProtocolConf(in, &thrift.TConfiguration{MaxMessageSize: mostHeader})
	var h header
	if _, err := p.ReadStructBegin(ctx); err != nil {
		return h, 0, fmt.Errorf("page header: %w", err)
	}
	for {
		_, kind, id, err := p.ReadFieldBegin(ctx)
		if err != nil {
			return h, 0, fmt.Errorf("page header: %w", err)
		}
		if kind == thrift.STOP {
			return h, int64(len(text) - in.Len()), nil
		}
		if err := h.field(ctx, p, kind, id); err != nil {
			return h, 0, fmt.Errorf("page header: %w", err)
		}
	}
}

func (h *header) field(ctx context.Context, p thrift.TProtocol, kind thrift.TType, id int16) error {
	if kind != thrift.I32 || (id != fieldCompressedSize && id != fieldCRC) {
		return p.Skip(ctx, kind)
	}
	v, err := p.ReadI32(ctx)
	if id == fieldCompressedSize {
		h.size = int64(v)
	} else {
		h.crc, h.hasCRC = uint32(v), true
	}
	return err
}
