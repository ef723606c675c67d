// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package pagecrc

import (
	"bytes"
	"errors"
	"hash/crc32"
	"strings"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"
)

// page is a PageHeader and a body, written with Thrift's own encoder. Field 5 stands for the nested headers
// that a reader must step over, text for statistics of any length.
func page(t *testing.T, body []byte, crc *uint32, text string) []byte {
	t.Helper()
	ctx := t.Context()
	buf := thrift.NewTMemoryBuffer()
	p := thrift.NewTCompactProtocolConf(buf, nil)
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	i32 := func(id int16, v int32) {
		must(p.WriteFieldBegin(ctx, "", thrift.I32, id))
		must(p.WriteI32(ctx, v))
		must(p.WriteFieldEnd(ctx))
	}
	must(p.WriteStructBegin(ctx, "PageHeader"))
	i32(1, 0)
	i32(2, int32(2*len(body)))
	i32(3, int32(len(body)))
	if crc != nil {
		i32(4, int32(*crc))
	}
	must(p.WriteFieldBegin(ctx, "", thrift.STRUCT, 5))
	must(p.WriteStructBegin(ctx, "DataPageHeader"))
	i32(1, 7)
	must(p.WriteFieldBegin(ctx, "", thrift.STRING, 5))
	must(p.WriteString(ctx, text))
	must(p.WriteFieldStop(ctx))
	must(p.WriteStructEnd(ctx))
	must(p.WriteFieldStop(ctx))
	must(p.WriteStructEnd(ctx))
	must(p.Flush(ctx))
	return append(buf.Bytes(), body...)
}

// summed is a page with the right CRC.
func summed(t *testing.T, body []byte, text string) []byte {
	t.Helper()
	crc := crc32.ChecksumIEEE(body)
	return page(t, body, &crc, text)
}

func TestCheck(t *testing.T) {
	long := bytes.Repeat([]byte("abc"), 200_000)
	good := bytes.Join([][]byte{summed(t, long, ""), summed(t, []byte("x"), strings.Repeat("s", 50_000)), summed(t, nil, "")}, nil)
	bare := append(page(t, long, nil, ""), "no page"...)
	tests := []struct {
		name string
		data []byte
	}{{"right sums", good}, {"no sums", bare}, {"no pages", nil}}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			file := append([]byte("PAR1"), tt.data...)
			if err := Check(t.Context(), bytes.NewReader(file), 4, int64(len(tt.data))); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestEveryChangedByteIsNoticed flips each byte of two pages in turn.
func TestEveryChangedByteIsNoticed(t *testing.T) {
	first, second := summed(t, []byte("some values"), "stat"), summed(t, []byte("other values"), "stat")
	headers := map[int]bool{}
	for i := range first[:len(first)-len("some values")] {
		headers[i] = true
	}
	for i := range second[:len(second)-len("other values")] {
		headers[len(first)+i] = true
	}
	good := append(append([]byte(nil), first...), second...)
	for i := range good {
		bad := append([]byte(nil), good...)
		bad[i] ^= 0x40
		err := Check(t.Context(), bytes.NewReader(bad), 0, int64(len(bad)))
		if !headers[i] && !errors.Is(err, ErrMismatch) {
			t.Errorf("byte %d of a body was changed: %v", i, err)
		}
	}
}

func TestCheckRefuses(t *testing.T) {
	tests := []struct {
		name string
		data []byte
	}{
		{"cut body", summed(t, []byte("values"), "")[:12]},
		{"cut header", summed(t, []byte("values"), "")[:3]},
		{"noise", bytes.Repeat([]byte{0xff}, 100)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if err := Check(t.Context(), bytes.NewReader(tt.data), 0, int64(len(tt.data))); err == nil {
				t.Error("no error")
			}
		})
	}
}

func FuzzCheck(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0x15, 0x00, 0x15, 0x0c, 0x15, 0x0c, 0x15, 0x02, 0x00, 1, 2, 3})
	f.Fuzz(func(t *testing.T, data []byte) {
		// An error or none: what matters is that it ends without a panic.
		_ = Check(t.Context(), bytes.NewReader(data), 0, int64(len(data)))
	})
}
