// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"fmt"
	"math"
	"slices"

	ice "github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
	"github.com/kubeflow/datacache/cacheserver/predicate"
)

// pruner decides which manifests and data files may have rows that match the filter, as Iceberg's Java library does: by the partition
// values that manifest lists and manifests state, and by the bounds of the filter's columns. The nil pruner keeps everything.
type pruner struct {
	filter *predicate.Filter
	specs  map[int32]*projection // by id of the partition spec
}

// projection is a filter on the partition fields of a spec. It is true for every partition that may have rows for which the table's
// filter is true.
type projection struct {
	table    *Table
	spec     *ice.PartitionSpec
	schema   *ice.Schema // of the partition fields
	rehashed bool        // the spec's buckets are not those of the columns' current values
	fields   map[int]projected
	filter   *predicate.Filter
}

// projected is a partition field of a projection.
type projected struct {
	column.Field
	at      int   // its index in the spec
	width   int64 // of truncate, else 0
	rounded bool  // years, months, days or hours of times, which old writers rounded; see corrected
}

// newPruner returns the pruner of the table's filter.
func (t *Table) newPruner() (*pruner, error) {
	if t.Filter == nil {
		return nil, nil
	}
	p := &pruner{filter: t.Filter, specs: map[int32]*projection{}}
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
func (t *Table) projectionOn(spec *ice.PartitionSpec) (*projection, error) {
	types := spec.PartitionType(t.schema).FieldList
	p := &projection{table: t, spec: spec, schema: ice.NewSchema(0, types...), rehashed: t.hasPromotedDate(spec), fields: map[int]projected{}}
	for i, pf := range spec.Fields() {
		of, err := t.fieldOf(types[i])
		if err != nil {
			return nil, err
		}
		field := projected{Field: of, at: i}
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
		p.fields[pf.FieldID] = field
	}
	tree, err := syntax.Replace(t.Filter.Tree(), p.project)
	if err != nil {
		return nil, err
	}
	p.filter, err = predicate.Compile(tree)
	return p, err
}

// project returns what must be true of every partition that may have rows for which a test is true.
func (p *projection) project(n syntax.Node, _ bool) (syntax.Node, error) {
	t, _ := n.(predicate.Test)
	terms := []syntax.Node{syntax.Const{Value: true}}
	all, err := p.table.bound(t)
	if err != nil {
		return nil, err
	}
	for _, pf := range p.spec.FieldsBySourceID(t.Field.ID) {
		_, bucket := pf.Transform.(ice.BucketTransform)
		truncate, _ := pf.Transform.(ice.TruncateTransform)
		for _, b := range all {
			if len(pf.SourceIDs) != 1 || bucket && p.rehashed || wraps(b, int64(truncate.Width)) {
				continue
			}
			on, err := pf.Transform.Project(pf.Name, b)
			if err != nil {
				return nil, err
			}
			if on != nil {
				test, err := p.testOf(on)
				if err != nil {
					return nil, err
				}
				terms = append(terms, test)
			}
		}
	}
	return syntax.Join(false, terms...), nil
}

// operations are iceberg-go's names of the tests of a filter's tree.
var operations = map[ice.Operation]predicate.Test{
	ice.OpIsNull: {Op: syntax.IsNull}, ice.OpNotNull: {Op: syntax.IsNull, Negated: true},
	ice.OpIsNan: {Op: syntax.IsNaN}, ice.OpNotNan: {Op: syntax.IsNaN, Negated: true},
	ice.OpEQ: {Op: syntax.Equal}, ice.OpNEQ: {Op: syntax.Equal, Negated: true},
	ice.OpIn: {Op: syntax.In}, ice.OpNotIn: {Op: syntax.In, Negated: true},
	ice.OpLT: {Op: syntax.Less}, ice.OpLTEQ: {Op: syntax.LessEqual}, ice.OpGT: {Op: syntax.Greater}, ice.OpGTEQ: {Op: syntax.GreaterEqual},
}

// bound returns a test as predicates of iceberg-go, all of which must be true.
func (t *Table) bound(test predicate.Test) ([]ice.BoundPredicate, error) {
	name, ok := t.whole.FindColumnName(test.Field.ID)
	if !ok {
		return nil, fmt.Errorf("field %d is not in the schema", test.Field.ID)
	}
	typ, _ := t.whole.FindTypeByID(test.Field.ID)
	literals := make([]ice.Literal, len(test.Values))
	for i, v := range test.Values {
		raw, err := column.Encode(v, test.Field.Type)
		if err == nil {
			literals[i], err = ice.LiteralFromBytes(typ, raw)
		}
		if err != nil {
			return nil, err
		}
	}
	var op ice.Operation
	for of, t := range operations {
		if t.Op == test.Op && t.Negated == test.Negated {
			op = of
		}
	}
	ref := ice.Reference(name)
	var unbound []ice.BooleanExpression
	switch {
	case len(literals) == 0:
		unbound = append(unbound, ice.UnaryPredicate(op, ref))
	case test.Op == syntax.In:
		unbound = append(unbound, ice.SetPredicate(op, ref, literals))
	default:
		unbound = append(unbound, ice.LiteralPredicate(op, ref, literals[0]))
	}
	if test.Negated && test.Op != syntax.IsNull {
		unbound = append(unbound, ice.NotNull(ref))
	}
	var all []ice.BoundPredicate
	for _, u := range unbound {
		b, err := ice.BindExpr(t.whole, u, true)
		if err != nil {
			return nil, err
		}
		if b, ok := b.(ice.BoundPredicate); ok { // or it is always true
			all = append(all, b)
		}
	}
	return all, nil
}

// testOf returns the test of a partition field that a predicate makes.
func (p *projection) testOf(on ice.UnboundPredicate) (syntax.Node, error) {
	b, err := ice.BindExpr(p.schema, on, true)
	if err != nil {
		return nil, err
	}
	of, ok := b.(ice.BoundPredicate)
	if !ok {
		return syntax.Const{Value: b.Equals(ice.AlwaysTrue{})}, nil
	}
	var literals []ice.Literal
	switch of := of.(type) {
	case ice.BoundLiteralPredicate:
		literals = []ice.Literal{of.Literal()}
	case ice.BoundSetPredicate:
		literals = of.Literals().Members()
	}
	test, known := operations[of.Op()]
	if !known {
		return syntax.Const{Value: true}, nil
	}
	test.Field = p.fields[of.Ref().Field().ID].Field
	for _, l := range literals {
		v, err := valueOf(l)
		if err != nil {
			return nil, err
		}
		test.Values = append(test.Values, v)
	}
	return test, nil
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
	return of.filter.MightMatch(func(f column.Field) predicate.Bounds {
		field := of.fields[f.ID]
		return field.summary(summaries[field.at])
	})
}

// summary returns the bounds of a partition field's values in a manifest.
func (f projected) summary(s ice.FieldSummary) predicate.Bounds {
	b := predicate.Bounds{Counted: !s.ContainsNull, Values: 1, NoNaN: s.ContainsNaN != nil && !*s.ContainsNaN}
	if s.LowerBound != nil && s.UpperBound != nil {
		b.Min, b.Max, b.Known = boundsOf(*s.LowerBound, *s.UpperBound, f.Type)
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
	if f.width > 0 && b.Min.Kind == column.Int && (b.Min.Int%f.width != 0 || b.Max.Int%f.width != 0) {
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
	return (!ok || of.file(d)) && p.filter.MightMatch(metricsOf(d))
}

// file reports whether the filter may be true for the partition of a data file.
func (p *projection) file(d ice.DataFile) bool {
	partition := d.Partition()
	return p.filter.MightMatch(func(f column.Field) predicate.Bounds {
		from, ok := partition[f.ID]
		switch {
		case !ok:
			return predicate.Bounds{}
		case from == nil:
			return predicate.Bounds{Nulls: 1, Values: 1, Counted: true}
		}
		v, err := partitionValue(from, f.Type)
		if err != nil {
			return predicate.Bounds{}
		}
		return p.fields[f.ID].corrected(predicate.Single(v))
	})
}
