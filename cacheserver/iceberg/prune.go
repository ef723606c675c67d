// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"encoding/binary"
	"math"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/parquet"
	ice "github.com/apache/iceberg-go"
)

// mightMatch reports whether a row of a row group may pass a bound filter, as
// far as the footer's statistics tell. In doubt it may.
func mightMatch(filter ice.BooleanExpression, f *footer, group int) bool {
	plain, err := ice.RewriteNotExpr(filter)
	if err != nil {
		return true
	}
	might, err := ice.VisitExpr(plain, &pruner{footer: f, group: group})
	return might || err != nil
}

// pruner computes whether a bound filter may be true for a row of a row group.
type pruner struct {
	footer *footer
	group  int
}

var _ ice.BoundBooleanExprVisitor[bool] = (*pruner)(nil)

// bounds is what statistics say of one column of a row group.
type bounds struct {
	lo, hi  value // minimum and maximum
	known   bool  // lo and hi are
	nulls   int64
	counted bool // nulls is
	values  int64
}

// allNull reports whether no comparison can be true.
func (b bounds) allNull() bool { return b.counted && b.nulls == b.values }

// of returns the bounds of a term's column.
func (p *pruner) of(term ice.BoundTerm) bounds {
	ref, ok := term.(ice.BoundReference)
	if !ok {
		return bounds{}
	}
	leaf, from := findLeaf(p.footer.columns, ref.Field().ID)
	if leaf < 0 {
		return bounds{}
	}
	meta := p.footer.meta.RowGroups[p.group].Columns[leaf].GetMetaData()
	if meta == nil || !meta.IsSetStatistics() {
		return bounds{}
	}
	s := meta.GetStatistics()
	b := bounds{nulls: s.GetNullCount(), counted: s.IsSetNullCount(), values: meta.GetNumValues()}
	if !s.IsSetMinValue() || !s.IsSetMaxValue() {
		return b
	}
	to, err := arrowType(ref.Field(), nil)
	if err != nil {
		return b
	}
	physical := p.footer.meta.Schema.Column(leaf).PhysicalType()
	lo, ok1 := statistic(s.GetMinValue(), physical, from, to)
	hi, ok2 := statistic(s.GetMaxValue(), physical, from, to)
	b.lo, b.hi = lo, hi
	b.known = ok1 && ok2 && lo.compare(hi) <= 0
	return b
}

// findLeaf returns the Parquet column of field id, if it is not in a list or a
// map, and its type in the file; -1 if there is none.
func findLeaf(columns []*fileColumn, id int) (int, arrow.DataType) {
	for _, c := range columns {
		if c.id == id {
			return c.leaf, c.field.Type
		}
		if c.field.Type.ID() == arrow.STRUCT {
			if leaf, t := findLeaf(c.kids, id); leaf >= 0 {
				return leaf, t
			}
		}
	}
	return -1, nil
}

// statistic decodes a bound of a column whose file type is from and whose table
// type is to.
func statistic(raw []byte, physical parquet.Type, from, to arrow.DataType) (value, bool) {
	promoted := from.ID() == arrow.INT32 && to.ID() == arrow.INT64 || from.ID() == arrow.FLOAT32 && to.ID() == arrow.FLOAT64
	if !arrow.TypeEqual(from, to) && !promoted {
		return value{}, false
	}
	if d, ok := to.(*arrow.Decimal128Type); ok && d.Scale >= 0 {
		return decimalStatistic(raw, physical)
	}
	switch physical {
	case parquet.Types.Int32:
		return intValue(int64(int32(first4(raw)))), len(raw) == 4
	case parquet.Types.Int64:
		return intValue(int64(first8(raw))), len(raw) == 8
	case parquet.Types.Float:
		v := float64(math.Float32frombits(first4(raw)))
		return floatValue(v), len(raw) == 4 && !math.IsNaN(v)
	case parquet.Types.Double:
		v := math.Float64frombits(first8(raw))
		return floatValue(v), len(raw) == 8 && !math.IsNaN(v)
	case parquet.Types.ByteArray, parquet.Types.FixedLenByteArray:
		return bytesValue(string(raw)), true
	}
	return value{}, false
}

func decimalStatistic(raw []byte, physical parquet.Type) (value, bool) {
	v := value{kind: kindDecimal}
	switch {
	case physical == parquet.Types.Int32 && len(raw) == 4:
		v.decimal = decimal128.FromI64(int64(int32(first4(raw))))
	case physical == parquet.Types.Int64 && len(raw) == 8:
		v.decimal = decimal128.FromI64(int64(first8(raw)))
	case physical == parquet.Types.FixedLenByteArray && len(raw) > 0 && len(raw) <= 16:
		var wide [16]byte // big-endian two's complement
		if raw[0]&0x80 != 0 {
			for i := range wide {
				wide[i] = 0xff
			}
		}
		copy(wide[16-len(raw):], raw)
		v.decimal = decimal128.New(int64(binary.BigEndian.Uint64(wide[:8])), binary.BigEndian.Uint64(wide[8:]))
	default:
		return v, false
	}
	return v, true
}

func first4(raw []byte) uint32 {
	if len(raw) != 4 {
		return 0
	}
	return binary.LittleEndian.Uint32(raw)
}

func first8(raw []byte) uint64 {
	if len(raw) != 8 {
		return 0
	}
	return binary.LittleEndian.Uint64(raw)
}

// compare reports whether a row may satisfy a comparison with a literal: might
// is asked with how the column's minimum and maximum compare with it.
func (p *pruner) compare(term ice.BoundTerm, lit ice.Literal, might func(lo, hi int) bool) bool {
	b := p.of(term)
	if b.allNull() {
		return false
	}
	v, err := literalValue(lit, term.Type())
	if err != nil || !b.known || v.kind != b.lo.kind || v.compare(v) == unordered {
		return true
	}
	return might(b.lo.compare(v), b.hi.compare(v))
}

func (p *pruner) VisitTrue() bool                        { return true }
func (p *pruner) VisitFalse() bool                       { return false }
func (p *pruner) VisitNot(bool) bool                     { return true } // RewriteNotExpr leaves none
func (p *pruner) VisitAnd(left, right bool) bool         { return left && right }
func (p *pruner) VisitOr(left, right bool) bool          { return left || right }
func (p *pruner) VisitUnbound(ice.UnboundPredicate) bool { return true }

func (p *pruner) VisitBound(b ice.BoundPredicate) bool { return ice.VisitBoundPredicate(b, p) }

func (p *pruner) VisitEqual(t ice.BoundTerm, l ice.Literal) bool {
	return p.compare(t, l, func(lo, hi int) bool { return lo <= 0 && hi >= 0 })
}

func (p *pruner) VisitNotEqual(t ice.BoundTerm, _ ice.Literal) bool { return !p.of(t).allNull() }

func (p *pruner) VisitLess(t ice.BoundTerm, l ice.Literal) bool {
	return p.compare(t, l, func(lo, _ int) bool { return lo < 0 })
}

func (p *pruner) VisitLessEqual(t ice.BoundTerm, l ice.Literal) bool {
	return p.compare(t, l, func(lo, _ int) bool { return lo <= 0 })
}

func (p *pruner) VisitGreater(t ice.BoundTerm, l ice.Literal) bool {
	return p.compare(t, l, func(_, hi int) bool { return hi > 0 })
}

func (p *pruner) VisitGreaterEqual(t ice.BoundTerm, l ice.Literal) bool {
	return p.compare(t, l, func(_, hi int) bool { return hi >= 0 })
}

func (p *pruner) VisitIn(t ice.BoundTerm, lits ice.Set[ice.Literal]) bool {
	for _, l := range lits.Members() {
		if p.VisitEqual(t, l) {
			return true
		}
	}
	return false
}

func (p *pruner) VisitNotIn(t ice.BoundTerm, _ ice.Set[ice.Literal]) bool { return !p.of(t).allNull() }

func (p *pruner) VisitIsNull(t ice.BoundTerm) bool {
	b := p.of(t)
	return !b.counted || b.nulls > 0
}

func (p *pruner) VisitNotNull(t ice.BoundTerm) bool { return !p.of(t).allNull() }
func (p *pruner) VisitIsNan(t ice.BoundTerm) bool   { return !p.of(t).allNull() }
func (p *pruner) VisitNotNan(t ice.BoundTerm) bool  { return !p.of(t).allNull() }

func (p *pruner) VisitStartsWith(t ice.BoundTerm, l ice.Literal) bool {
	b := p.of(t)
	prefix, err := literalValue(l, t.Type())
	if err != nil || !b.known || b.lo.kind != kindBytes || prefix.kind != kindBytes {
		return !b.allNull()
	}
	return b.hi.bytes >= prefix.bytes && (b.lo.bytes <= prefix.bytes || strings.HasPrefix(b.lo.bytes, prefix.bytes))
}

func (p *pruner) VisitNotStartsWith(t ice.BoundTerm, _ ice.Literal) bool { return !p.of(t).allNull() }
