// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package delta

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"strings"

	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/iceberg-go/table/dv"
	"github.com/google/uuid"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source/parquet"
)

// vector is a deletion vector: the rows of a file that are deleted, as the log describes it.
type vector struct {
	Storage     string `json:"storageType"` // u, p or i
	Path        string `json:"pathOrInlineDv"`
	Offset      *int64 `json:"offset"`
	Size        int64  `json:"sizeInBytes"`
	Cardinality int64  `json:"cardinality"`
}

// id is the vector's unique id; empty without a vector.
func (v *vector) id() string {
	if v == nil {
		return ""
	}
	id := v.Storage + v.Path
	if v.Offset != nil {
		id = fmt.Sprintf("%s@%d", id, *v.Offset)
	}
	return id
}

// maxVectorRows bounds the rows of a file with a deletion vector: the reader keeps a bit for each.
const maxVectorRows = 1 << 31

// Sizes in a vector's file: before the vector stands its length, behind it a checksum.
const (
	lengthSize   = 4
	checksumSize = 4
)

// keep returns a bit for each of the rows of a file; 1 means that the row is kept.
func (v *vector) keep(ctx context.Context, store *objstore.Store, root string, rows int64) (_ []byte, err error) {
	defer parquet.RecoverError(&err)
	if rows > maxVectorRows {
		return nil, fmt.Errorf("the file has %d rows, and with a deletion vector at most %d are read: compact the table", rows, int64(maxVectorRows))
	}
	blob, err := v.read(ctx, store, root)
	if err != nil {
		return nil, err
	}
	deleted, err := dv.DeserializeDV(blob, v.Cardinality)
	if err != nil {
		return nil, err
	}
	bits := deleted.KeepMaskBytes(rows)
	if kept := int64(bitutil.CountSetBits(bits, 0, int(rows))); kept+v.Cardinality != rows {
		return nil, fmt.Errorf("it has rows that the file, which has %d, does not have", rows)
	}
	return bits, nil
}

// read returns the vector with its length and checksum.
func (v *vector) read(ctx context.Context, store *objstore.Store, root string) ([]byte, error) {
	if v.Storage == "i" {
		data, err := z85(v.Path)
		if err != nil || v.Size < 0 || v.Size > int64(len(data)) {
			return nil, fmt.Errorf("deletionVector.pathOrInlineDv %.40q does not have %d bytes in Z85: repair the log", v.Path, v.Size)
		}
		data = data[:v.Size]
		blob := append(binary.BigEndian.AppendUint32(nil, uint32(len(data))), data...)
		return binary.BigEndian.AppendUint32(blob, crc32.ChecksumIEEE(data)), nil
	}
	uri, err := v.uri(root)
	if err != nil {
		return nil, err
	}
	f, err := store.Open(ctx, uri)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // opened for reading: closing can't lose data
	at := int64(0)
	if v.Offset != nil {
		at = *v.Offset
	}
	if at < 0 || v.Size < 0 || at > f.Size() || v.Size > f.Size()-at-lengthSize-checksumSize { // fits: at is at most the file's size
		return nil, fmt.Errorf("%s has %d bytes, and no vector of %d bytes at %d: restore it", uri, f.Size(), v.Size, at)
	}
	blob := make([]byte, lengthSize+v.Size+checksumSize)
	if _, err := f.ReadAt(blob, at); err != nil {
		return nil, err
	}
	return blob, nil
}

// encodedUUID is the length of a UUID in Z85.
const encodedUUID = 20

// uri is the URI of the vector's file.
func (v *vector) uri(root string) (string, error) {
	if v.Storage == "p" {
		return resolve(root, v.Path)
	}
	if v.Storage != "u" || len(v.Path) < encodedUUID {
		return "", fmt.Errorf("deletionVector has storageType %q and pathOrInlineDv %.40q: want u, p or i: repair the log", v.Storage, v.Path)
	}
	folder, name := v.Path[:len(v.Path)-encodedUUID], v.Path[len(v.Path)-encodedUUID:] // fits: Path is at least as long
	raw, err := z85(name)
	if err != nil {
		return "", fmt.Errorf("deletionVector.pathOrInlineDv %q: %w: repair the log", v.Path, err)
	}
	id, err := uuid.FromBytes(raw)
	if err != nil {
		return "", fmt.Errorf("deletionVector.pathOrInlineDv %q: %w: repair the log", v.Path, err)
	}
	if folder != "" {
		folder += "/"
	}
	return resolve(root, folder+"deletion_vector_"+id.String()+".bin")
}

// z85Digits are the digits of Z85 (https://rfc.zeromq.org/spec/32).
const z85Digits = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"

var errZ85 = errors.New("it is not in Z85")

// z85 decodes text: five digits are four bytes.
func z85(text string) ([]byte, error) {
	if len(text)%5 != 0 {
		return nil, errZ85
	}
	out := make([]byte, 0, len(text)/5*4)
	for ; text != ""; text = text[5:] {
		var n uint64
		for _, c := range []byte(text[:5]) {
			digit := strings.IndexByte(z85Digits, c)
			if digit < 0 {
				return nil, errZ85
			}
			n = 85*n + uint64(digit)
		}
		if n > 1<<32-1 {
			return nil, errZ85
		}
		out = binary.BigEndian.AppendUint32(out, uint32(n))
	}
	return out, nil
}
