// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"fmt"
	"math"
	"slices"

	ice "github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/cacheserver/predicate"
)

// pruner decides which manifests and data files may have rows that match the filter, as Iceberg's Java library does: by the partition
// values that manifest lists and manifests state, and by the bounds of the filter's columns. The nil pruner keeps everything.
type pruner struct {
	filter ice.BooleanExpression // bound to the table's schema
	specs  map[int32]projection  // by id of the partition spec
}

// projection is a filter on the partition fields of a spec. It is true for every partition that may have rows for which the table's
// filter is true.
type projection struct {
	filter ice.BooleanExpression
	fields []projected
}

// projected is a partition field of a projection.
type projected struct {
	id      int
	typ     ice.Type
	width   int64 // of truncate, else 0
	rounded bool  // years, months, days or hours of times, which old writers rounded; see bounds
}

// newPruner returns the pruner of the table's filter.
func (t *Table) newPruner() (*pruner, error) {
	if t.Filter == nil {
		return nil, nil
	}
	p := &pruner{filter: t.Filter, specs: map[int32]projection{}}
	for _, spec := range t.table.Metadata().PartitionSpecs() {
		of, err := t.projectionOn(&spec)
		if err != nil {
			return nil, fmt.Errorf("partition spec %d: %w", spec.ID(), err)
		}
		p.specs[int32(spec.ID())] = of
	}
	return p, nil
}

// projectionOn projects the table's filter on a partition spec.
func (t *Table) projectionOn(spec *ice.PartitionSpec) (projection, error) {
	var p projection
	types := spec.PartitionType(t.schema).FieldList
	for i, pf := range spec.Fields() {
		field := projected{id: pf.FieldID, typ: types[i].Type}
		switch transform := pf.Transform.(type) {
		case ice.TruncateTransform:
			field.width = int64(transform.Width)
		case ice.YearTransform, ice.MonthTransform, ice.HourTransform:
			field.rounded = true
		case ice.DayTransform:
			source, _ := t.schema.FindTypeByID(pf.SourceID())
			_, date := source.(ice.DateType)
			field.rounded = !date
		}
		p.fields = append(p.fields, field)
	}
	on, err := ice.VisitExpr(t.Filter, projector{spec: spec, rehashed: t.hasPromotedDate(spec)})
	if err != nil {
		return p, err
	}
	p.filter, err = ice.BindExpr(ice.NewSchema(0, types...), on, true)
	return p, err
}

// hasPromotedDate reports whether a date that the spec puts in buckets was promoted to a timestamp, which has other hashes.
func (t *Table) hasPromotedDate(spec *ice.PartitionSpec) bool {
	isDate := func(s *ice.Schema, id int) bool {
		f, ok := s.FindFieldByID(id)
		_, date := f.Type.(ice.DateType)
		return ok && date
	}
	for _, pf := range spec.Fields() {
		_, bucket := pf.Transform.(ice.BucketTransform)
		for _, id := range pf.SourceIDs {
			was := slices.ContainsFunc(t.table.Metadata().Schemas(), func(s *ice.Schema) bool { return isDate(s, id) })
			if bucket && was && !isDate(t.schema, id) {
				return true
			}
		}
	}
	return false
}

// projector projects a bound filter on the fields of a partition spec.
type projector struct {
	spec     *ice.PartitionSpec
	rehashed bool // the spec's buckets are not those of the columns' current values
}

var _ ice.BooleanExprVisitor[ice.BooleanExpression] = projector{}

func (projector) VisitTrue() ice.BooleanExpression                        { return ice.AlwaysTrue{} }
func (projector) VisitFalse() ice.BooleanExpression                       { return ice.AlwaysFalse{} }
func (projector) VisitNot(ice.BooleanExpression) ice.BooleanExpression    { return ice.AlwaysTrue{} } // package filter makes none
func (projector) VisitUnbound(ice.UnboundPredicate) ice.BooleanExpression { return ice.AlwaysTrue{} }
func (projector) VisitAnd(left, right ice.BooleanExpression) ice.BooleanExpression {
	return ice.NewAnd(left, right)
}
func (projector) VisitOr(left, right ice.BooleanExpression) ice.BooleanExpression {
	return ice.NewOr(left, right)
}

// VisitBound returns what must be true of every partition that may have rows for which p is true.
func (v projector) VisitBound(p ice.BoundPredicate) ice.BooleanExpression {
	var out ice.BooleanExpression = ice.AlwaysTrue{}
	for _, pf := range v.spec.FieldsBySourceID(p.Ref().Field().ID) {
		_, bucket := pf.Transform.(ice.BucketTransform)
		truncate, _ := pf.Transform.(ice.TruncateTransform)
		if len(pf.SourceIDs) != 1 || bucket && v.rehashed || wraps(p, int64(truncate.Width)) {
			continue
		}
		on, err := pf.Transform.Project(pf.Name, p)
		if err != nil {
			panic(err) // which VisitExpr returns
		}
		if on != nil {
			out = ice.NewAnd(out, on)
		}
	}
	return out
}

// wraps reports whether integers that a predicate compares are so low that truncating them to a multiple of width overflows.
func wraps(p ice.BoundPredicate, width int64) bool {
	low := func(l ice.Literal) bool {
		switch v := l.(type) {
		case ice.Int32Literal:
			return int64(v) <= math.MinInt32+width
		case ice.Int64Literal:
			return int64(v) <= math.MinInt64+width
		}
		return false
	}
	switch p := p.(type) {
	case ice.BoundLiteralPredicate:
		return width > 0 && low(p.Literal())
	case ice.BoundSetPredicate:
		return width > 0 && slices.ContainsFunc(p.Literals().Members(), low)
	}
	return false
}

// manifest reports whether a manifest may have files with matching rows. Delete files apply to the data files of their partition only,
// so those of other partitions are not needed either.
func (p *pruner) manifest(m ice.ManifestFile) bool {
	if p == nil {
		return true
	}
	of, ok := p.specs[m.PartitionSpecID()]
	summaries := m.Partitions()
	if !ok || len(summaries) != len(of.fields) {
		return true
	}
	return predicate.MightMatch(of.filter, func(f ice.NestedField) predicate.Bounds {
		for i, field := range of.fields {
			if field.id == f.ID {
				return field.summary(summaries[i])
			}
		}
		return predicate.Bounds{}
	})
}

// summary returns the bounds of a partition field's values in a manifest.
func (f projected) summary(s ice.FieldSummary) predicate.Bounds {
	b := predicate.Bounds{Counted: !s.ContainsNull, Values: 1, NoNaN: s.ContainsNaN != nil && !*s.ContainsNaN}
	if s.LowerBound != nil && s.UpperBound != nil {
		b.Min, b.Max, b.Known = boundsOf(*s.LowerBound, *s.UpperBound, f.typ)
	}
	return f.corrected(b)
}

// corrected returns bounds of partition values that allow for what writers stored wrongly.
func (f projected) corrected(b predicate.Bounds) predicate.Bounds {
	if f.rounded && b.Known && b.Min.Int <= 0 {
		// Before Iceberg 0.10, times before 1970 were rounded up instead of down.
		b.Min.Int--
		b.Single = false
	}
	if f.width > 0 && b.Min.Kind == predicate.KindInt && (b.Min.Int%f.width != 0 || b.Max.Int%f.width != 0) {
		// Java's arithmetic truncates the lowest integers to the highest ones, which are no multiples.
		b.Known, b.Single = false, false
	}
	return b
}

// file reports whether a data file may have matching rows.
func (p *pruner) file(d ice.DataFile) bool {
	if p == nil {
		return true
	}
	of, ok := p.specs[d.SpecID()]
	return (!ok || of.file(d)) && predicate.MightMatch(p.filter, metricsOf(d))
}

// file reports whether the filter may be true for the partition of a data file.
func (of projection) file(d ice.DataFile) bool {
	partition := d.Partition()
	return predicate.MightMatch(of.filter, func(f ice.NestedField) predicate.Bounds {
		from, ok := partition[f.ID]
		if !ok {
			return predicate.Bounds{}
		}
		if from == nil {
			return predicate.Bounds{Nulls: 1, Values: 1, Counted: true}
		}
		v, err := partitionValue(from, f.Type)
		at := slices.IndexFunc(of.fields, func(p projected) bool { return p.id == f.ID })
		if err != nil || at < 0 {
			return predicate.Bounds{}
		}
		return of.fields[at].corrected(predicate.Single(v))
	})
}
