// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"errors"
	"strings"
	"testing"

	"github.com/apache/thrift/lib/go/thrift"
)

// thriftPage encodes the header of a data page of version 2 with Thrift's own encoder; text is put in its statistics.
func thriftPage(t *testing.T, text string) []byte {
	t.Helper()
	ctx := t.Context()
	buf := thrift.NewTMemoryBuffer()
	p := thrift.NewTCompactProtocolConf(buf, nil)
	must := func(errs ...error) {
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	i32 := func(id int16, v int32) {
		must(p.WriteFieldBegin(ctx, "", thrift.I32, id), p.WriteI32(ctx, v))
	}
	must(p.WriteStructBegin(ctx, "PageHeader"))
	i32(pageKind, kindDataV2)
	i32(pageUncompressed, 70000)
	i32(pageCompressed, 300)
	i32(pageCRC, -5)
	must(p.WriteFieldBegin(ctx, "", thrift.STRUCT, pageDataV2), p.WriteStructBegin(ctx, "DataPageHeaderV2"))
	i32(dataValues, 1000)
	i32(v2Encoding, 8)
	i32(v2DefBytes, 7)
	i32(v2RepBytes, 0)
	must(p.WriteFieldBegin(ctx, "", thrift.BOOL, v2Compressed), p.WriteBool(ctx, false))
	must(p.WriteFieldBegin(ctx, "", thrift.STRUCT, 8), p.WriteStructBegin(ctx, "Statistics"))
	must(p.WriteFieldBegin(ctx, "", thrift.STRING, 1), p.WriteString(ctx, text))
	must(p.WriteFieldBegin(ctx, "", thrift.I64, 3), p.WriteI64(ctx, 1<<40))
	must(p.WriteFieldBegin(ctx, "", thrift.DOUBLE, 20), p.WriteDouble(ctx, 0.5))
	must(p.WriteFieldBegin(ctx, "", thrift.LIST, 40), p.WriteListBegin(ctx, thrift.BOOL, 20))
	for range 20 {
		must(p.WriteBool(ctx, true))
	}
	for range 3 {
		must(p.WriteFieldStop(ctx), p.WriteStructEnd(ctx))
	}
	return buf.Bytes()
}

func TestParseHeader(t *testing.T) {
	for _, length := range []int{0, 10, 5000} {
		text := thriftPage(t, strings.Repeat("x", length))
		h, size, err := parseHeader(append(text, "and what follows"...))
		if err != nil || size != len(text) {
			t.Fatalf("a header of %d bytes has %d: %v", len(text), size, err)
		}
		for id, want := range map[int]int64{pageKind: kindDataV2, pageUncompressed: 70000, pageCompressed: 300, pageCRC: -5} {
			if !h.page.has(id) || h.page.value[id] != want {
				t.Errorf("field %d of the page header is %d, want %d", id, h.page.value[id], want)
			}
		}
		for id, want := range map[int]int64{dataValues: 1000, v2Encoding: 8, v2DefBytes: 7, v2RepBytes: 0, v2Compressed: 0} {
			if !h.data.has(id) || h.data.value[id] != want {
				t.Errorf("field %d of the data page header is %d, want %d", id, h.data.value[id], want)
			}
		}
	}
}

func TestHeaderEndsEarly(t *testing.T) {
	text := thriftPage(t, "statistics")
	for n := range len(text) {
		if _, _, err := parseHeader(text[:n]); !errors.Is(err, errShort) {
			t.Errorf("%d bytes of a header of %d: %v, want %v", n, len(text), err, errShort)
		}
	}
}

func TestHeaderTooDeep(t *testing.T) {
	nested := strings.Repeat("\x1c", 1000) // each byte is field 1 of type struct
	if _, _, err := parseHeader([]byte(nested)); !errors.Is(err, errHeader) {
		t.Errorf("1000 structs within one another: %v, want %v", err, errHeader)
	}
}

func FuzzHeader(f *testing.F) {
	f.Add([]byte("\x15\x00\x15\x02\x15\x02\x00"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if _, size, err := parseHeader(text); err == nil && (size < 1 || size > len(text)) {
			t.Errorf("a header of %d bytes in %d", size, len(text))
		}
	})
}
