// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/pierrec/lz4/v4"
)

func rawLZ4(t testing.TB, data []byte) []byte {
	t.Helper()
	out := make([]byte, lz4.CompressBlockBound(len(data)))
	n, err := lz4.CompressBlock(data, out, nil)
	if err != nil || n == 0 {
		t.Fatalf("compress %d bytes: %d, %v", len(data), n, err)
	}
	return out[:n]
}

// hadoop frames data like BlockCompressorStream, in blocks of several pieces.
func hadoop(t testing.TB, data []byte, block, piece int) []byte {
	t.Helper()
	var out []byte
	for ; len(data) > 0; data = data[min(block, len(data)):] {
		part := data[:min(block, len(data))]
		out = binary.BigEndian.AppendUint32(out, uint32(len(part)))
		for ; len(part) > 0; part = part[min(piece, len(part)):] {
			raw := rawLZ4(t, part[:min(piece, len(part))])
			out = append(binary.BigEndian.AppendUint32(out, uint32(len(raw))), raw...)
		}
	}
	return out
}

func lz4Framed(t testing.TB, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	w := lz4.NewWriter(&out)
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestLZ4Framings(t *testing.T) {
	data := bytes.Repeat([]byte("some values that repeat "), 5000)
	codec, err := compress.GetCodec(compress.Codecs.Lz4)
	if err != nil {
		t.Fatal(err)
	}
	for name, src := range map[string][]byte{
		"Hadoop, one block":        hadoop(t, data, len(data), len(data)),
		"Hadoop, blocks":           hadoop(t, data, 1000, 1000),
		"Hadoop, blocks of pieces": hadoop(t, data, 70_000, 10_000),
		"Hadoop, as it is encoded": codec.Encode(nil, data),
		"frame":                    lz4Framed(t, data),
		"raw block":                rawLZ4(t, data),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := compress.Decode(codec, make([]byte, len(data)), src)
			if err != nil || !bytes.Equal(got, data) {
				t.Fatalf("%d bytes, %v, want the %d that were compressed", len(got), err, len(data))
			}
			for _, size := range []int{len(data) - 1, len(data) + 1} {
				got, err := compress.Decode(codec, make([]byte, size), src)
				if err == nil && (name != "frame" || size > len(data)) {
					t.Errorf("%d bytes uncompressed where the page has %d, no error", len(got), size)
				}
			}
			if _, err := compress.Decode(codec, make([]byte, len(data)), src[:len(src)-3]); err == nil && name != "frame" {
				t.Error("cut short, no error")
			}
		})
	}
}

// FuzzLZ4 decodes arbitrary bytes: the result must be an error or a page, never a panic.
func FuzzLZ4(f *testing.F) {
	data := bytes.Repeat([]byte("value "), 30)
	f.Add(hadoop(f, data, 100, 60), uint16(len(data)))
	f.Add(lz4Framed(f, data), uint16(len(data)))
	f.Add([]byte{}, uint16(1))
	f.Fuzz(func(t *testing.T, src []byte, size uint16) {
		_, _ = hadoopLZ4{}.DecodeWithError(make([]byte, size), src)
	})
}
