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
//	0       8     magic: "dcobj", 0, 1 for a layout and 0 for other objects, the format's version
//	8       8     length of the object
//	16      8     XXH3-64 of the object
//	24      8     length of the name
//	32      8     XXH3-64 of the header: the 32 bytes before, then the name
//	40            the name: bucket, slash, key
const (
	magic       = "dcobj\x00\x00\x01"
	magicLayout = "dcobj\x00\x01\x01"
	fixedSize   = 40
)

// header is what the header says about an object beside its name.
type header struct {
	length   int64
	checksum uint64
	isLayout bool
}

// headerSize is the offset of the object's bytes in its file.
func headerSize(bucket, key string) int64 { return int64(fixedSize + len(bucket) + 1 + len(key)) }

// encode makes the header of an object.
func (of header) encode(bucket, key string) []byte {
	name := bucket + "/" + key
	h := make([]byte, fixedSize+len(name))
	copy(h, magic)
	if of.isLayout {
		copy(h, magicLayout)
	}
	binary.LittleEndian.PutUint64(h[8:], uint64(of.length))
	binary.LittleEndian.PutUint64(h[16:], of.checksum)
	binary.LittleEndian.PutUint64(h[24:], uint64(len(name)))
	copy(h[fixedSize:], name)
	binary.LittleEndian.PutUint64(h[32:], headerChecksum(h))
	return h
}

// decodeHeader decodes a header of headerSize bytes; ok reports whether it is valid and belongs to this object.
func decodeHeader(h []byte, bucket, key string) (of header, ok bool) {
	of.isLayout = string(h[:8]) == magicLayout
	if !of.isLayout && string(h[:8]) != magic || string(h[fixedSize:]) != bucket+"/"+key {
		return header{}, false
	}
	if binary.LittleEndian.Uint64(h[24:]) != uint64(len(h)-fixedSize) || binary.LittleEndian.Uint64(h[32:]) != headerChecksum(h) {
		return header{}, false
	}
	of.length, of.checksum = int64(binary.LittleEndian.Uint64(h[8:])), binary.LittleEndian.Uint64(h[16:])
	return of, true
}

func headerChecksum(h []byte) uint64 {
	return xxh3.HashSeed(h[fixedSize:], xxh3.Hash(h[:32]))
}
