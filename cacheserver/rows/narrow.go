// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
)

// Messages may have the integers of a column, and of lists, in a shorter type than the schema says. A code names the type by its format
// in Arrow's C data interface: c, s, i for 8, 16, 32 bits, and C, S, I for the same without a sign.
const (
	signedCodes, unsignedCodes = "csi", "CSI"
	Declared                   = byte('-') // the code for the schema's type
)

// typeOf is the type that a code names, nil if it names none.
func typeOf(code byte) arrow.DataType {
	types := []arrow.DataType{
		arrow.PrimitiveTypes.Int8, arrow.PrimitiveTypes.Int16, arrow.PrimitiveTypes.Int32,
		arrow.PrimitiveTypes.Uint8, arrow.PrimitiveTypes.Uint16, arrow.PrimitiveTypes.Uint32,
	}
	if i := strings.IndexByte(signedCodes+unsignedCodes, code); i >= 0 {
		return types[i]
	}
	return nil
}

// withIntegers returns a type of integers of 32 or 64 bits, or of lists of them, with to in their place. It returns nil for other types.
func withIntegers(dt, to arrow.DataType) arrow.DataType {
	item := func(f arrow.Field) (arrow.Field, bool) {
		f.Type = withIntegers(f.Type, to)
		return f, f.Type != nil
	}
	switch t := dt.(type) {
	case *arrow.Int32Type, *arrow.Uint32Type, *arrow.Int64Type, *arrow.Uint64Type:
		return to
	case *arrow.ListType:
		if f, ok := item(t.ElemField()); ok {
			return arrow.ListOfField(f)
		}
	case *arrow.LargeListType:
		if f, ok := item(t.ElemField()); ok {
			return arrow.LargeListOfField(f)
		}
	case *arrow.FixedSizeListType:
		if f, ok := item(t.ElemField()); ok {
			return arrow.FixedSizeListOfField(t.Len(), f)
		}
	}
	return nil
}

// integersOf is the node of a column's integers, nil if it has none that messages may have in a shorter type.
func (l *Layout) integersOf(column int) *node {
	if column >= len(l.columns) || withIntegers(l.schema.Field(column).Type, arrow.Null) == nil {
		return nil
	}
	c := l.columns[column]
	return l.nodes[c.nodes[1]-1] // each list has one child
}

// Fits says in how few bytes the integers of each column fit: 1, 2, 4 or 8 in its low four bits as signed, and in the others as unsigned
// ones. It is 0 for a column of which messages have no shorter type.
func (r *Rows) Fits() []byte { return r.fits }

func (r *Rows) addFits() {
	r.fits = make([]byte, len(r.layout.columns))
	for i := range r.fits {
		n := r.layout.integersOf(i)
		if n == nil {
			continue
		}
		signed, unsigned := byte(1), byte(1)
		if arrow.IsUnsignedInteger(n.typ.ID()) {
			signed = 8 // forms compare unsigned integers as signed ones
		}
		for _, c := range r.chunks {
			signed, unsigned = max(signed, c.forms[n.id].signed), max(unsigned, c.forms[n.id].unsigned)
		}
		r.fits[i] = signed | unsigned<<4
	}
}

// Codes returns the shortest types, one code a column, in which messages of rows with all these fits may have the columns of a schema.
func Codes(schema *arrow.Schema, fits ...[]byte) string {
	codes := make([]byte, schema.NumFields())
	for i := range codes {
		signed, unsigned := byte(0), byte(0)
		for _, f := range fits {
			signed, unsigned = max(signed, f[i]&15), max(unsigned, f[i]>>4)
		}
		codes[i] = code(schema.Field(i).Type, signed, unsigned)
	}
	return string(codes)
}

// code returns the code for integers that fit in so many bytes.
func code(dt arrow.DataType, signed, unsigned byte) byte {
	if signed == 0 {
		return Declared
	}
	width := byte(integerOf(dt).BitWidth() / 8)
	switch {
	case unsigned < width && unsigned <= signed:
		return unsignedCodes[bits.TrailingZeros8(unsigned)]
	case signed < width:
		return signedCodes[bits.TrailingZeros8(signed)]
	}
	return Declared
}

// integerOf is the type of the integers in a type that withIntegers takes.
func integerOf(dt arrow.DataType) arrow.FixedWidthDataType {
	for {
		list, ok := dt.(arrow.ListLikeType)
		if !ok {
			return dt.(arrow.FixedWidthDataType)
		}
		dt = list.Elem()
	}
}

// narrowField returns a field with its integers in the type of a code.
func narrowField(f arrow.Field, code byte) arrow.Field {
	if code != Declared {
		f.Type = withIntegers(f.Type, typeOf(code))
	}
	return f
}

// Narrow returns a projection whose messages have the integers in the types of codes, one for each of its columns. It returns an error
// if the rows' integers don't fit.
func (r *Rows) Narrow(p *Projection, codes string) (*Projection, error) {
	if len(codes) != len(p.columns) {
		return nil, fmt.Errorf("%d types for %d columns", len(codes), len(p.columns))
	}
	narrow, fields, end := *p, p.schema.Fields(), 0
	narrow.nodes = slices.Clone(p.nodes)
	for i, c := range p.columns {
		end += p.layout.root(c).count
		if codes[i] == Declared {
			continue
		}
		n, to := p.layout.integersOf(c), typeOf(codes[i])
		if n == nil || to == nil || !fits(r.fits[c], codes[i]) {
			return nil, fmt.Errorf("column %q: values of %s don't fit in type %q", fields[i].Name, fields[i].Type, codes[i])
		}
		short := *n
		short.width = to.(arrow.FixedWidthDataType).BitWidth() / 8
		narrow.nodes[end-1] = &short
		narrow.narrow = append(narrow.narrow, &short)
		fields[i] = narrowField(fields[i], codes[i])
	}
	meta := p.schema.Metadata()
	narrow.schema = arrow.NewSchema(fields, &meta)
	return &narrow, nil
}

// fits reports whether integers, of which fit says in how few bytes they fit, fit in the type of a code.
func fits(fit, code byte) bool {
	if i := strings.IndexByte(unsignedCodes, code); i >= 0 {
		return fit>>4 <= 1<<i
	}
	return fit&15 <= 1<<strings.IndexByte(signedCodes, code)
}
