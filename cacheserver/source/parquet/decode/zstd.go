// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"sync"

	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/klauspost/compress/zstd"
)

// zstdCodec is arrow-go's codec with another decoder for whole pages: arrow-go's runs at most four decodes concurrently, however many
// cores there are, and allocates as much memory as a frame claims to need.
type zstdCodec struct {
	compress.Codec
	compress.StreamingCodec
}

func init() {
	codec, err := compress.GetCodec(compress.Codecs.Zstd)
	if err != nil {
		panic(err) // arrow-go has registered it
	}
	compress.RegisterCodec(compress.Codecs.Zstd, zstdCodec{codec, codec.(compress.StreamingCodec)}) //nolint:forcetypeassert // arrow-go's streams
}

// zstdDecoder runs as many concurrent decodes as there are cores, and never writes beyond the capacity of the destination.
var zstdDecoder = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecoderConcurrency(0), zstd.WithDecodeAllCapLimit(true))
})

// DecodeWithError implements compress.ErrorCodec.
func (z zstdCodec) DecodeWithError(dst, src []byte) ([]byte, error) {
	decoder, err := zstdDecoder()
	if err != nil || cap(dst) == 0 {
		return compress.Decode(z.Codec, dst, src)
	}
	return decoder.DecodeAll(src, dst[:0])
}
