// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"bytes"
	"compress/flate"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/klauspost/compress/zstd"

	"github.com/kubeflow/datacache/cacheserver/objstore"
)

// Limits on the memory that a table's files can make a reader use, since the files are untrusted. They are several times what engines
// write.
const (
	maxMetadata   = 64 << 20  // bytes of a metadata file or a catalog's response, both as stored and uncompressed
	maxManifest   = 128 << 20 // bytes of a manifest or a manifest list, both as stored and uncompressed
	maxNesting    = 300       // nesting depth of objects and arrays in JSON: three for each level of a schema
	maxFileRows   = 1 << 31   // rows of a data file with row-level deletes: the reader keeps a bit per row
	maxDeleteRows = 1 << 25   // rows of a delete file: the reader keeps each of them
)

// errBound says that a file of the table exceeds a limit.
var errBound = objstore.ErrTooLong

func overBound(size, limit int64, unit string) error {
	return fmt.Errorf("%d %s, at most %d are read: %w", size, unit, limit, errBound)
}

// expand reads at most limit bytes; more are an error.
func expand(r io.Reader, limit int64) ([]byte, error) {
	data, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("it expands to more than %d bytes: %w", limit, errBound)
	}
	return data, nil
}

// checkNesting rejects JSON text with such deep nesting that recursive parsers would need much memory for it.
func checkNesting(text []byte) error {
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{', c == '[':
			if depth++; depth > maxNesting {
				return fmt.Errorf("its JSON is nested more than %d deep at byte %d: %w", maxNesting, i, errBound)
			}
		case c == '}', c == ']':
			depth--
		}
	}
	return nil
}

// checkAvro rejects an Avro file whose blocks uncompress to more than limit bytes, or claim more rows than they have bytes.
func checkAvro(file []byte, limit int64) error {
	header, rest, err := avroHeader(file)
	if err != nil {
		return err
	}
	codec := ""
	for _, e := range header {
		switch e.key {
		case avroSchema:
			if err := checkNesting(e.value); err != nil {
				return fmt.Errorf("its Avro schema: %w", err)
			}
		case "avro.codec":
			codec = string(e.value)
		}
	}
	const syncSize = 16
	if len(rest) < syncSize {
		return errAvroHeader
	}
	var total int64
	for rest = rest[syncSize:]; len(rest) > 0; rest = rest[syncSize:] {
		var rows int64
		var block []byte
		if rows, rest, err = avroLong(rest); err != nil {
			return err
		}
		if block, rest, err = avroBytes(rest); err != nil || len(rest) < syncSize {
			return errors.New("an Avro block is cut off or corrupt")
		}
		size, err := expandedSize(codec, block, limit-total)
		if err != nil {
			return err
		}
		if total += size; total > limit {
			return fmt.Errorf("its Avro blocks expand to more than %d bytes: %w", limit, errBound)
		}
		if rows < 0 || rows > size {
			return fmt.Errorf("an Avro block of %d bytes tells of %d rows: %w", size, rows, errBound)
		}
	}
	return nil
}

// expandedSize is the length of a block after decompression; if that exceeds limit, it returns any number above limit.
func expandedSize(codec string, block []byte, limit int64) (int64, error) {
	var r io.Reader
	switch codec {
	case "deflate":
		r = flate.NewReader(bytes.NewReader(block))
	case "zstandard":
		z, err := zstd.NewReader(bytes.NewReader(block), zstd.WithDecoderConcurrency(1), zstd.WithDecoderMaxMemory(maxManifest))
		if err != nil {
			return 0, err
		}
		defer z.Close()
		r = z
	case "snappy":
		size, n := binary.Uvarint(block)
		if n <= 0 {
			return 0, errors.New("an Avro block's snappy header is corrupt")
		}
		return int64(min(size, uint64(limit)+1)), nil
	default: // "null", or a codec that the reader rejects
		return int64(len(block)), nil
	}
	size, err := io.Copy(io.Discard, io.LimitReader(r, limit+1))
	if err != nil {
		return 0, fmt.Errorf("expand an Avro block (%s): %w", codec, err)
	}
	return size, nil
}
