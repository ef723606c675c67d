// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"

	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/pierrec/lz4/v4"
)

// hadoopLZ4 is the Parquet codec LZ4 (id 5), which the format deprecates because writers use different framings (Compression.md).
// Hadoop, and so Spark, writes blocks in the format of BlockCompressorStream: the block's uncompressed length, then pieces that are
// each preceded by their compressed length, until the uncompressed length is reached; lengths are 32 bits, big-endian. Old Arrow
// writers wrote LZ4 frames, or a single raw LZ4 block. The codec is registered for pqarrow too, which has none with this id.
type hadoopLZ4 struct{}

var _ compress.ErrorCodec = hadoopLZ4{}

func init() { compress.RegisterCodec(compress.Codecs.Lz4, hadoopLZ4{}) }

const lz4FrameMagic = 0x184d2204

// DecodeWithError fills dst, whose length is the page's uncompressed size.
func (hadoopLZ4) DecodeWithError(dst, src []byte) ([]byte, error) {
	if hadoopBlocks(dst, src) == nil {
		return dst, nil
	}
	if len(src) >= 4 && binary.LittleEndian.Uint32(src) == lz4FrameMagic {
		_, err := io.ReadFull(lz4.NewReader(bytes.NewReader(src)), dst)
		return dst, err
	}
	n, err := lz4.UncompressBlock(src, dst)
	if err == nil && n != len(dst) {
		err = io.ErrUnexpectedEOF
	}
	return dst, err
}

var errNotHadoop = errors.New("no blocks of Hadoop's LZ4 codec")

// hadoopBlocks decompresses src, blocks in the framing of Hadoop's LZ4 codec, to dst, which they must fill exactly.
func hadoopBlocks(dst, src []byte) error {
	for len(src) > 0 {
		block := bigEndianLength(&src)
		if block < 0 || block > len(dst) {
			return errNotHadoop
		}
		for left := dst[:block]; len(left) > 0; {
			size := bigEndianLength(&src)
			if size <= 0 || size > len(src) {
				return errNotHadoop
			}
			n, err := lz4.UncompressBlock(src[:size], left)
			if err != nil || n == 0 {
				return errNotHadoop
			}
			left, src = left[n:], src[size:]
		}
		dst = dst[block:]
	}
	if len(dst) > 0 {
		return errNotHadoop
	}
	return nil
}

// bigEndianLength removes a length from the front of src and returns it; -1 if src is too short.
func bigEndianLength(src *[]byte) int {
	if len(*src) < 4 {
		return -1
	}
	n := binary.BigEndian.Uint32(*src)
	*src = (*src)[4:]
	return int(n)
}

func (c hadoopLZ4) Decode(dst, src []byte) []byte {
	out, err := c.DecodeWithError(dst, src)
	if err != nil {
		panic(err) // compress.Codec.Decode can't return an error; compress.Decode calls DecodeWithError
	}
	return out
}

// Encode writes one block with one piece.
func (c hadoopLZ4) Encode(dst, src []byte) []byte {
	raw, err := compress.GetCodec(compress.Codecs.Lz4Raw)
	if err != nil {
		panic(err) // arrow-go registers it
	}
	piece := raw.Encode(nil, src)
	dst = binary.BigEndian.AppendUint32(dst[:0], uint32(len(src)))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(piece)))
	return append(dst, piece...)
}

func (c hadoopLZ4) EncodeLevel(dst, src []byte, _ int) []byte { return c.Encode(dst, src) }

func (hadoopLZ4) CompressBound(n int64) int64 { return 8 + int64(lz4.CompressBlockBound(int(n))) }
