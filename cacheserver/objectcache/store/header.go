// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// A file is a header and the object's bytes. The header, with little-endian numbers:
//
//	offset  size  what
//	0       8     magic, with the format's version
//	8       8     length of the object
//	16      8     XXH3-64 of the object
//	24      8     length of the name
//	32      8     XXH3-64 of the header: the 32 bytes before, then the name
//	40            the name: bucket, slash, key
const (
	magic     = "dcobj\x00\x00\x01"
	fixedSize = 40
)

// headerSize is the offset of the object's bytes in its file.
func headerSize(bucket, key string) int64 { return int64(fixedSize + len(bucket) + 1 + len(key)) }

// encodeHeader makes the header of an object.
func encodeHeader(bucket, key string, length int64, checksum uint64) []byte {
	name := bucket + "/" + key
	h := make([]byte, fixedSize+len(name))
	copy(h, magic)
	binary.LittleEndian.PutUint64(h[8:], uint64(length))
	binary.LittleEndian.PutUint64(h[16:], checksum)
	binary.LittleEndian.PutUint64(h[24:], uint64(len(name)))
	copy(h[fixedSize:], name)
	binary.LittleEndian.PutUint64(h[32:], headerChecksum(h))
	return h
}

// decodeHeader decodes a header of headerSize bytes; ok reports whether it is valid and belongs to this object.
func decodeHeader(h []byte, bucket, key string) (length int64, checksum uint64, ok bool) {
	if string(h[:8]) != magic || string(h[fixedSize:]) != bucket+"/"+key {
		return 0, 0, false
	}
	if binary.LittleEndian.Uint64(h[24:]) != uint64(len(h)-fixedSize) || binary.LittleEndian.Uint64(h[32:]) != headerChecksum(h) {
		return 0, 0, false
	}
	return int64(binary.LittleEndian.Uint64(h[8:])), binary.LittleEndian.Uint64(h[16:]), true
}

func headerChecksum(h []byte) uint64 {
	return xxh3.HashSeed(h[fixedSize:], xxh3.Hash(h[:32]))
}
