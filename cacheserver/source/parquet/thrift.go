// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/arrow-go/v18/parquet/schema"
	"github.com/apache/thrift/lib/go/thrift"
)

// Limits of what the footer of a file may ask for.
const (
	// mostFooter bounds the length of a footer.
	mostFooter = 64 << 20
	// mostItems bounds the length of each list in a footer: the columns and groups of the schema, the row groups, the column chunks of a
	// row group.
	mostItems = 1 << 16
	// mostTogether bounds the items of all lists in a footer.
	mostTogether = 1 << 22
	// mostLevels bounds the nesting of a schema. Arrow readers read at most 64 levels, and a list or a map of Arrow is two levels of
	// Parquet.
	mostLevels = 128
	// mostPaths bounds the total length of the dotted paths of a schema's columns, which arrow-go makes.
	mostPaths = 16 << 20
	// mostWidth bounds the length of FIXED_LEN_BYTE_ARRAY values: nulls have it too in memory, although they take no room in the file.
	mostWidth = 16 << 20
)

// footerTail is the length of the footer's own length and the magic.
const footerTail = 8

// readThrift reads the footer of a file, without its Schema, and its length. A panic of the Thrift library becomes an error.
func readThrift(ctx context.Context, f io.ReaderAt, size int64) (_ *metadata.FileMetaData, length int64, err error) {
	defer RecoverError(&err)
	var tail [footerTail]byte
	if size < footerTail {
		return nil, 0, fmt.Errorf("the file has %d bytes", size)
	}
	if _, err := f.ReadAt(tail[:], size-footerTail); err != nil { // fits: size is at least footerTail
		return nil, 0, err
	}
	switch string(tail[4:]) {
	case "PAR1":
	case "PARE":
		return nil, 0, fmt.Errorf("it is encrypted: %w", errors.ErrUnsupported)
	default:
		return nil, 0, errors.New("the file does not end with PAR1: it is no Parquet file or was cut off")
	}
	length = int64(binary.LittleEndian.Uint32(tail[:4]))
	switch {
	case length > size-footerTail: // fits: size is at least footerTail
		return nil, 0, fmt.Errorf("it has %d bytes where the file has %d", length, size)
	case length > mostFooter:
		return nil, 0, fmt.Errorf("it has %d bytes, at most %d are read: write files with fewer columns or fewer row groups", length, mostFooter)
	}
	text := make([]byte, length)
	if _, err := f.ReadAt(text, size-footerTail-length); err != nil { // fits: length was compared
		return nil, 0, err
	}
	meta := new(metadata.FileMetaData)
	meta.FileMetaData = newLike(meta.FileMetaData)
	if err := meta.Read(ctx, &boundedLists{protocolOf(text), mostTogether}); err != nil {
		return nil, 0, err
	}
	meta.SetSourceFileSize(size)
	meta.WriterVersion() // sets it, since goroutines share the footer
	return meta, length, nil
}

// protocolOf reads structs in Thrift's compact protocol. It allocates no more for a string or a list than text can contain.
func protocolOf(text []byte) thrift.TProtocol {
	memory := &thrift.TMemoryBuffer{Buffer: bytes.NewBuffer(text)}
	return thrift.NewTCompactProtocolConf(memory, &thrift.TConfiguration{MaxMessageSize: int32(max(len(text), 1))})
}

// pageLocations decodes an offset index.
func pageLocations(ctx context.Context, text []byte) ([]*metadata.PageLocation, error) {
	var empty metadata.OffsetIndexBuilder
	if err := errors.Join(empty.AddPage(0, 0, 0), empty.Finish(0)); err != nil {
		return nil, err
	}
	index := empty.Build()
	if err := index.(thrift.TStruct).Read(ctx, protocolOf(text)); err != nil { //nolint:forcetypeassert // a struct whose type is internal to arrow-go
		return nil, err
	}
	return index.GetPageLocations(), nil
}

// boundedLists is a protocol that returns an error for a list of more than mostItems, and for lists with more than left items together.
type boundedLists struct {
	thrift.TProtocol
	left int
}

func (b *boundedLists) ReadListBegin(ctx context.Context) (thrift.TType, int, error) {
	of, items, err := b.TProtocol.ReadListBegin(ctx)
	if err != nil {
		return of, items, err
	}
	if items > mostItems {
		return of, 0, fmt.Errorf("it has a list of %d items, at most %d are read: write files with fewer columns and groups or fewer row groups", items, mostItems)
	}
	if b.left -= items; b.left < 0 {
		return of, 0, fmt.Errorf("its lists have more than %d items together: write files with fewer columns or fewer row groups", mostTogether)
	}
	return of, items, nil
}

// element is an element of the schema in a footer.
type element interface {
	GetName() string
	GetNumChildren() int32
	GetTypeLength() int32
}

// checkSchema returns an error unless the elements are one tree in depth-first order, the root first, whose nesting and names are within
// the limits.
func checkSchema[E element](elements []E) error {
	if len(elements) == 0 {
		return errors.New("its schema is empty")
	}
	type group struct {
		name  string
		path  int   // length of the dotted path
		needs int32 // children that are still to come
	}
	open := make([]group, 0, 8) // from the root to the parent of the next element
	paths := 0
	for i, e := range elements {
		name, children, path := e.GetName(), e.GetNumChildren(), 0
		if children < 0 || int(children) > len(elements)-1-i { // fits: i is less than len(elements)
			return fmt.Errorf("its schema says %d children of %q, and %d elements follow", children, name, len(elements)-1-i) // fits: i is less than len(elements)
		}
		if i > 0 {
			if len(open) == 0 {
				return fmt.Errorf("its schema has %d elements, %q among them, that are children of no other", len(elements)-i, name) // fits: i is less than len(elements)
			}
			if len(open) > mostLevels {
				return fmt.Errorf("its column %q is nested more than %d levels deep", open[1].name, mostLevels)
			}
			parent := &open[len(open)-1]
			parent.needs--
			path = parent.path + len(name) + 1
		}
		if children > 0 {
			open = append(open, group{name, path, children})
			continue
		}
		if width := e.GetTypeLength(); width > mostWidth {
			return fmt.Errorf("its column %q has values of %d bytes each, at most %d are read", name, width, mostWidth)
		}
		if paths += path; paths > mostPaths {
			return fmt.Errorf("the paths of its columns have more than %d bytes", mostPaths)
		}
		for len(open) > 0 && open[len(open)-1].needs == 0 {
			open = open[:len(open)-1]
		}
	}
	if len(open) > 0 {
		return fmt.Errorf("its schema says that %q has %d children more than there are", open[len(open)-1].name, open[len(open)-1].needs)
	}
	return nil
}

// arrowFields sets the Schema of a footer whose elements were checked, and returns its Arrow fields. A panic of arrow-go becomes an error.
func arrowFields(meta *metadata.FileMetaData) (_ *pqarrow.SchemaManifest, err error) {
	defer RecoverError(&err)
	root, err := schema.FromParquet(meta.FileMetaData.Schema)
	if err != nil {
		return nil, err
	}
	meta.Schema = schema.NewSchema(root.(*schema.GroupNode))
	// Without the key-value metadata: the Arrow schema stored there could ask for large offsets and dictionaries, which are not served.
	return pqarrow.NewSchemaManifest(meta.Schema, nil, nil)
}

// newLike returns a new T, for a type whose package is internal to arrow-go.
func newLike[T any](*T) *T { return new(T) }
