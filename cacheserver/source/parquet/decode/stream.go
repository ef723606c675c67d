// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/apache/arrow-go/v18/parquet/compress"
)

// streamBuffer is how much of a page's body is in memory while it is uncompressed as a stream.
const streamBuffer = 256 << 10

// stream reads and uncompresses the body of the page whose header was read. Unlike whole, it never has the complete body in memory.
func (p *pages) stream(h *header, size int) ([]byte, error) {
	length := h.page.value[pageCompressed]
	if length > p.end-p.at {
		return nil, corrupt("%d bytes where its column chunk has %d left", length, p.end-p.at)
	}
	have := p.near()
	body := io.MultiReader(bytes.NewReader(have), io.NewSectionReader(p.from, p.at+int64(len(have)), length-int64(len(have))))
	sum := crc32.NewIEEE()
	if h.page.has(pageCRC) {
		body = io.TeeReader(body, sum)
	}
	out := p.sized(&p.plain, size)
	err := readStream(p.codec, bufio.NewReaderSize(body, max(streamBuffer, int(p.window))), out)
	if h.page.has(pageCRC) {
		if _, readErr := io.Copy(io.Discard, body); readErr != nil {
			return nil, readErr
		}
	}
	if err := p.verify(h, sum.Sum32()); err != nil { // more informative than the codec's error
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("corrupt page: it cannot be uncompressed: %w: restore or rewrite the file", err)
	}
	p.at += length
	return out, nil
}

// readStream uncompresses body, which must yield exactly len(out) bytes.
func readStream(codec compress.Codec, body io.Reader, out []byte) error {
	streaming, ok := codec.(compress.StreamingCodec)
	if !ok {
		return errors.ErrUnsupported
	}
	r := streaming.NewReader(body)
	defer func() { _ = r.Close() }() // the body was read to its end or is abandoned
	if _, err := io.ReadFull(r, out); err != nil {
		return err
	}
	if n, err := io.ReadFull(r, make([]byte, 1)); n > 0 {
		return fmt.Errorf("more than the %d bytes that its header says", len(out))
	} else if !errors.Is(err, io.EOF) {
		return err
	}
	return nil
}
