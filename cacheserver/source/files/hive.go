// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package files

import (
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/column"
)

// nullPartition is the value of a folder name that stands for null.
const nullPartition = "__HIVE_DEFAULT_PARTITION__"

// level is a folder name of the form key=value.
type level struct{ key, value string }

// levelsOf returns the levels of a file's path, outermost first.
func levelsOf(p string) ([]level, error) {
	var levels []level
	parts := strings.Split(p, "/")
	for _, part := range parts[:len(parts)-1] {
		key, value, ok := strings.Cut(part, "=")
		if !ok || key == "" {
			continue
		}
		l := level{key, value}
		for _, text := range []*string{&l.key, &l.value} {
			decoded, err := url.PathUnescape(*text)
			if err != nil {
				return nil, fmt.Errorf("%s: the folder %q has a broken escape: rename it, or say that folder names are no columns (partitions off)", p, part)
			}
			if !utf8.ValidString(decoded) {
				return nil, fmt.Errorf("%s: the folder %q is no UTF-8 text: rename it, or say that folder names are no columns (partitions off)", p, part)
			}
			*text = decoded
		}
		if slices.ContainsFunc(levels, func(o level) bool { return o.key == l.key }) {
			return nil, fmt.Errorf("%s: two folders give column %q a value: rename one, or say that folder names are no columns (partitions off)", p, l.key)
		}
		levels = append(levels, l)
	}
	return levels, nil
}

// partitionTypes are the types that Location.Types may name.
var partitionTypes = map[string]arrow.DataType{
	"string": arrow.BinaryTypes.String, "integer": arrow.PrimitiveTypes.Int64, "date": arrow.FixedWidthTypes.Date32,
}

func (l Location) validateTypes() error {
	for _, name := range slices.Sorted(maps.Keys(l.Types)) {
		if partitionTypes[l.Types[name]] == nil {
			return fmt.Errorf("partition type %s=%s: want string, integer or date", name, l.Types[name])
		}
		if l.Plain {
			return fmt.Errorf("partition type %s=%s: folder names are no columns (partitions off): leave one of them out", name, l.Types[name])
		}
	}
	return nil
}

// partitionFields returns the columns of the files' folder names. If types names no type of a column, it is an integer if all its values are
// written as integers are, a date if all are dates, otherwise a string.
func partitionFields(files []file, types map[string]string) ([]arrow.Field, error) {
	first, err := levelsOf(files[0].Path)
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(types)) {
		if !slices.ContainsFunc(first, func(l level) bool { return l.key == name }) {
			return nil, fmt.Errorf("partition type %s=%s: the folders of %s have no such name, they name the columns %s", name, types[name], files[0].URI, keys(first))
		}
	}
	return typedFields(files, first, types)
}

// check returns an error if the value is none of the type that was named for its column; "" is no type.
func (l level) check(named string) error {
	if named == "" {
		return nil
	}
	if _, err := partitionValue(l.value, partitionTypes[named]); err != nil {
		return fmt.Errorf("folder %s=%s is no %s, the type that was named for this column: name string", l.key, l.value, named)
	}
	return nil
}

// typedFields returns the columns of folder names that first has, with their types.
func typedFields(files []file, first []level, types map[string]string) ([]arrow.Field, error) {
	integers, dates, values := make([]bool, len(first)), make([]bool, len(first)), make([]int, len(first))
	for i := range first {
		integers[i], dates[i] = true, true
	}
	same := func(a, b level) bool { return a.key == b.key }
	for _, f := range files {
		levels, err := levelsOf(f.Path)
		if err != nil {
			return nil, err
		}
		if !slices.EqualFunc(levels, first, same) {
			return nil, fmt.Errorf("the folders of %s name the columns %s, those of %s %s: give all files the same ones, or say that folder names are no columns (partitions off)", f.URI, keys(levels), files[0].URI, keys(first))
		}
		for i, l := range levels {
			if l.value == nullPartition {
				continue
			}
			values[i]++
			if err := l.check(types[l.key]); err != nil {
				return nil, fmt.Errorf("%s: %w", f.URI, err)
			}
			n, err := strconv.ParseInt(l.value, 10, 64)
			integers[i] = integers[i] && err == nil && strconv.FormatInt(n, 10) == l.value
			_, err = time.Parse(time.DateOnly, l.value)
			dates[i] = dates[i] && err == nil
		}
	}
	fields := make([]arrow.Field, len(first))
	for i, l := range first {
		fields[i] = arrow.Field{Name: l.key, Type: arrow.BinaryTypes.String, Nullable: true}
		switch {
		case types[l.key] != "":
			fields[i].Type = partitionTypes[types[l.key]]
		case values[i] == 0:
		case integers[i]:
			fields[i].Type = arrow.PrimitiveTypes.Int64
		case dates[i]:
			fields[i].Type = arrow.FixedWidthTypes.Date32
		}
	}
	return fields, nil
}

func keys(levels []level) string {
	names := make([]string, len(levels))
	for i, l := range levels {
		names[i] = strconv.Quote(l.key)
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// partitionValues returns the values of the columns of folder names for a file; nil is null.
func partitionValues(p string, fields []column.Field) (map[int]*column.Value, error) {
	levels, err := levelsOf(p)
	if err != nil {
		return nil, err
	}
	if len(levels) != len(fields) {
		return nil, fmt.Errorf("%s: its folders name %d columns, the table has %d of folder names", p, len(levels), len(fields))
	}
	values := make(map[int]*column.Value, len(fields))
	for i, l := range levels {
		values[fields[i].ID] = nil
		if l.value == nullPartition {
			continue
		}
		v, err := partitionValue(l.value, fields[i].Type)
		if err != nil {
			return nil, fmt.Errorf("%s: folder %s=%s: %w", p, l.key, l.value, err)
		}
		values[fields[i].ID] = &v
	}
	return values, nil
}

func partitionValue(text string, t arrow.DataType) (column.Value, error) {
	switch t.ID() {
	case arrow.INT64:
		n, err := strconv.ParseInt(text, 10, 64)
		return column.IntValue(n), err
	case arrow.DATE32:
		day, err := time.Parse(time.DateOnly, text)
		return column.IntValue(int64(arrow.Date32FromTime(day))), err
	}
	return column.BytesValue(text), nil
}
