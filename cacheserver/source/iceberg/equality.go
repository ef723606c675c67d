// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	ice "github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/predicate"
	"github.com/kubeflow/datacache/cacheserver/source/scan"
)

// keySet is the set of encoded rows of an equality delete file.
type keySet struct {
	keys  map[string]struct{}
	bytes int64
}

func (s *keySet) cost() int64 { return s.bytes + int64(len(s.keys))*48 + 64 }

// equalDeletes holds those equality deletes of a data file that compare the same fields.
type equalDeletes struct {
	paths []column.Path
	sets  []*keySet
}

// equalDeletes returns the equality deletes of a data file, nil if none.
func (t *deleteReader) equalDeletes(ctx context.Context, d *dataFile, c *scan.Columns) ([]*equalDeletes, error) {
	var out []*equalDeletes
	byFields := map[string]*equalDeletes{}
	for _, file := range d.deletes.equality {
		ids := slices.Clone(file.EqualityFieldIDs())
		slices.Sort(ids)
		e := byFields[fmt.Sprint(ids)]
		if e == nil {
			e = &equalDeletes{}
			for _, id := range ids {
				e.paths = append(e.paths, c.Paths[id])
			}
			byFields[fmt.Sprint(ids)] = e
			out = append(out, e)
		}
		set, err := t.keySet(ctx, file, e.paths)
		if err != nil {
			return nil, err
		}
		e.sets = append(e.sets, set)
	}
	return out, nil
}

// keySet reads an equality delete file. Its values are converted to the types that the data files' columns are converted to, so that
// encodings can be compared.
func (t *deleteReader) keySet(ctx context.Context, file ice.DataFile, paths []column.Path) (*keySet, error) {
	fields := make([]column.Field, len(paths))
	within := make([]column.Path, len(paths))
	types := make([]string, len(paths))
	for i, p := range paths {
		chain, err := t.topLevelField(p.Field.ID)
		if err != nil {
			return nil, fmt.Errorf("delete file %s: %w", file.FilePath(), err)
		}
		fields[i] = chain
		within[i], _ = column.PathTo(i, chain, p.Field.ID)
		types[i] = fmt.Sprintf("%d:%s", p.Field.ID, p.Field.TypeName)
	}
	key := file.FilePath() + " " + strings.Join(types, " ")
	return t.equal.Get(ctx, key, func(ctx context.Context) (*keySet, error) {
		s := &keySet{keys: map[string]struct{}{}}
		err := t.readDeletes(ctx, file, fields, func(columns []arrow.Array) error {
			e, err := newEncoder(within, columns)
			if err != nil {
				return err
			}
			for i := range columns[0].Len() {
				k := e.key(i)
				if _, ok := s.keys[string(k)]; !ok {
					s.keys[string(k)] = struct{}{}
					s.bytes += int64(len(k))
				}
			}
			return nil
		})
		return s, err
	})
}

// clear drops from m the rows that equal a deleted one.
func (e *equalDeletes) clear(m *predicate.Mask, columns []arrow.Array) error {
	enc, err := newEncoder(e.paths, columns)
	if err != nil {
		return err
	}
	for i := range m.N {
		if !m.Has(i) {
			continue
		}
		k := enc.key(i)
		for _, s := range e.sets {
			if _, ok := s.keys[string(k)]; ok {
				m.Clear(i)
				break
			}
		}
	}
	return nil
}

// encoder encodes some columns of a row as a key: equal rows have equal keys. Null equals null, and NaN equals NaN (Iceberg spec,
// equality delete files).
type encoder struct {
	cells []cell
	buf   []byte
}

type cell struct {
	parents []arrow.Array
	leaf    arrow.Array
	append  func(buf []byte, i int) []byte
}

func newEncoder(paths []column.Path, columns []arrow.Array) (*encoder, error) {
	e := &encoder{}
	for _, p := range paths {
		leaf, parents := p.At(columns)
		f, err := appender(leaf)
		if err != nil {
			return nil, fmt.Errorf("compare field %q: %w", p.Field.Name, err)
		}
		e.cells = append(e.cells, cell{parents: parents, leaf: leaf, append: f})
	}
	return e, nil
}

// key returns the key of row i, valid until the next call.
func (e *encoder) key(i int) []byte {
	e.buf = e.buf[:0]
	for _, c := range e.cells {
		if c.leaf.IsNull(i) || column.AnyNull(c.parents, i) {
			e.buf = append(e.buf, 0)
			continue
		}
		e.buf = c.append(append(e.buf, 1), i)
	}
	return e.buf
}

// appender returns a function that appends the encoding of a cell of an array.
func appender(arr arrow.Array) (func(buf []byte, i int) []byte, error) {
	cells, err := column.Cells(arr)
	if err != nil {
		return nil, err
	}
	little := binary.LittleEndian
	switch cells := cells.(type) {
	case column.Bits:
		return func(buf []byte, i int) []byte { return append(buf, byte(column.BoolInt(cells(i)))) }, nil
	case []int32:
		return func(buf []byte, i int) []byte { return little.AppendUint32(buf, uint32(cells[i])) }, nil
	case []int64:
		return func(buf []byte, i int) []byte { return little.AppendUint64(buf, uint64(cells[i])) }, nil
	case []float32:
		return func(buf []byte, i int) []byte { return little.AppendUint64(buf, floatBits(float64(cells[i]))) }, nil
	case []float64:
		return func(buf []byte, i int) []byte { return little.AppendUint64(buf, floatBits(cells[i])) }, nil
	case []decimal128.Num:
		return func(buf []byte, i int) []byte {
			return little.AppendUint64(little.AppendUint64(buf, cells[i].LowBits()), uint64(cells[i].HighBits()))
		}, nil
	}
	texts, _ := cells.(column.Texts)
	return func(buf []byte, i int) []byte {
		v := texts(i)
		return append(little.AppendUint32(buf, uint32(len(v))), v...)
	}, nil
}

// floatBits gives every NaN the same bits.
func floatBits(v float64) uint64 {
	if math.IsNaN(v) {
		v = math.NaN()
	}
	return math.Float64bits(v)
}
