// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/google/uuid"

	"github.com/kubeflow/datacache/cacheserver/column"
	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
	"github.com/kubeflow/datacache/cacheserver/predicate"
)

func TestErrorsNamePlaceAndReason(t *testing.T) {
	tests := []struct {
		name, text string
		column     int
		want       []string // parts of the error message
	}{
		{"unknown column", "i = 1 AND idd > 2", 11, []string{`at "idd > 2"`, `unknown column "idd"`, `did you mean "id"?`, "the columns are id, i, l, b"}},
		{"letter case", "Group.X = 1", 1, []string{`unknown column "Group.X"`, `did you mean "group.x"?`}},
		{"nothing near", "q = 1", 1, []string{`unknown column "q"; the columns are`}},
		{"struct", "group = 1", 1, []string{`column "group"`, "group.x"}},
		{"list", "tags IS NULL", 1, []string{`column "tags"`, "list<int>", "cannot be compared"}},
		{"within a list", "tags.element = 1", 1, []string{"within a list"}},
		{"within a map", "map.value = 1", 1, []string{"within a map"}},
		{"characters, not bytes", "s = 'éé' AND nope = 1", 14, []string{"nope"}},

		{"fraction for an integer", "i < 2.5", 5, []string{`column "i" of type int`, "2.5 does not fit", "want an integer from -2147483648 to 2147483647"}},
		{"too large for an integer", "i = 2147483648", 5, []string{"2147483648", "type int"}},
		{"too small for a long", "l = -9223372036854775809", 5, []string{"-9223372036854775809", "type long"}},
		{"huge exponent", "l = 1e999999999999", 5, []string{"type long"}},
		{"string for an integer", "i = '1'", 5, []string{"'1' does not fit", "type int"}},
		{"integer for a string", "s = 1", 5, []string{"1 does not fit", "type string", "'string'"}},
		{"too large for a float", "f > 1e39", 5, []string{"1e39", "type float", "too large"}},
		{"too small for a double", "d > 1e-400", 5, []string{"1e-400", "too small"}},
		{"string for a double", "d > 'x'", 5, []string{"want a number"}},
		{"too many places", "dec = 0.125", 7, []string{"0.125", "decimal(10, 2)", "8 digits before and 2 behind"}},
		{"too many digits", "dec = 123456789", 7, []string{"8 digits before"}},
		{"number for a boolean", "b = 1", 5, []string{"TRUE or FALSE"}},
		{"order of booleans", "b < TRUE", 1, []string{`column "b"`, "no <", "use = or <>"}},
		{"BETWEEN of booleans", "b BETWEEN FALSE AND TRUE", 1, []string{"no BETWEEN"}},
		{"no such date", "date = '2023-02-29'", 8, []string{"'2023-02-29'", "type date", "'2026-01-31'"}},
		{"timestamp for a date", "date = TIMESTAMP '2023-02-01 00:00'", 8, []string{"TIMESTAMP '2023-02-01 00:00'", "type date"}},
		{"number for a date", "date = 20230101", 8, []string{"want a date"}},
		{"no such time", "time = '24:00'", 8, []string{"want a time"}},
		{"zone for no zone", "ts = '2023-01-01T00:00:00Z'", 6, []string{"type timestamp", "leave the zone out"}},
		{"no such zone", "tz = '2023-01-01T00:00:00+19:00'", 6, []string{"type timestamptz", "time zone"}},
		{"nanoseconds for microseconds", "ts = '2023-01-01T00:00:00.0000001'", 6, []string{"microseconds"}},
		{"nanoseconds for a time", "time = '00:00:00.0000001'", 8, []string{"microseconds"}},
		{"out of the nanoseconds", "tsns < '2300-01-01'", 8, []string{"from the year 1677 to 2262"}},
		{"no zone for a zone", "tz = '2023-01-01T00:00:00.5'", 6, []string{"type timestamptz", "add one: '2023-01-01T00:00:00.5Z'"}},
		{"a date for a zone", "tz = '2023-01-01'", 6, []string{"add one: '2023-01-01T00:00:00Z'"}},
		{"no zone for a zone of nanoseconds", "tzns = TIMESTAMP '2023-01-01 00:00'", 8, []string{"type timestamptz_ns", "add one: '2023-01-01 00:00Z'"}},
		{"no such month", "tz < '2023-13-01'", 6, []string{"want a timestamp"}},
		{"date for a string", "s = DATE '2023-01-01'", 5, []string{"DATE '2023-01-01'", "type string"}},
		{"string for bytes", "bin = 'a'", 7, []string{"X'0a1b'"}},
		{"bytes of another length", "fix = X'00'", 7, []string{"fixed[2]", "it has 1 bytes, want 2"}},
		{"no UUID", "u = 'x'", 5, []string{"type uuid", "123e4567"}},
		{"UUID in braces", "u = '{123e4567-e89b-12d3-a456-42661417400}'", 5, []string{"want a UUID"}},
		{"a list's second literal", "i IN (1, 2.5)", 10, []string{"2.5"}},
		{"long literal is cut", "i = '" + strings.Repeat("x", 100) + "'", 5, []string{"xxx... does not fit"}},

		{"long name is cut", strings.Repeat("y", 5000) + " = 1", 1, []string{`yyy..."; the columns are`}},

		{"NAN of an integer", "i IS NAN", 1, []string{"type int", "never NAN"}},
		{"LIKE of an integer", "i LIKE 'x%'", 1, []string{"no LIKE"}},
		{"suffix pattern", "s LIKE '%x'", 8, []string{"'%x'", "only patterns with nothing but a % at the end"}},
		{"underscore pattern", "s LIKE 'a_%'", 8, []string{"only patterns"}},
		{"escape of a letter", "s LIKE 'a!b%' ESCAPE '!'", 8, []string{"escape character stands before"}},
		{"escape at the end", "s LIKE 'a!' ESCAPE '!'", 8, []string{"ends with its escape"}},
		{"long escape", "s LIKE 'a' ESCAPE 'xx'", 19, []string{"one character"}},
		{"pattern without quotes", "s LIKE a", 8, []string{"expected a pattern"}},
		{"alone and not boolean", "b AND i", 7, []string{"type int needs a comparison"}},

		{"= NULL", "i = NULL", 5, []string{"IS NULL"}},
		{"NULL in a list", "i NOT IN (1, NULL)", 14, []string{"never true"}},
		{"two columns", "i = l", 5, []string{"two columns cannot be compared"}},
		{"string in double quotes", `s = "a"`, 5, []string{"'strings' stand in single quotes"}},
		{"two literals", "1 = 1", 5, []string{"expected a column"}},
		{"literal alone", "1", 2, []string{"at the end", "expected a comparison"}},
		{"no operator", "i 5", 3, []string{`at "5"`, "expected a comparison, IN, BETWEEN, LIKE or IS after column i"}},
		{"no literal", "i =", 4, []string{"at the end", "expected a literal"}},
		{"sign alone", "i = -x", 6, []string{"expected a number after -"}},
		{"empty list", "i IN ()", 7, []string{"expected a literal"}},
		{"list without comma", "i IN (1 2)", 9, []string{"expected , or )"}},
		{"list without parentheses", "i IN 1", 6, []string{"expected ("}},
		{"BETWEEN without AND", "i BETWEEN 1 OR 2", 13, []string{"expected AND"}},
		{"NOT and no keyword", "i NOT = 1", 7, []string{"expected IN, BETWEEN or LIKE after NOT"}},
		{"IS something", "b IS TRUE", 6, []string{"expected NULL or NAN"}},
		{"not closed", "(i = 1", 7, []string{"at the end", "the ) that closes column 1"}},
		{"closed too often", "i = 1)", 6, []string{`at ")"`, "expected AND, OR or the end"}},
		{"nothing between", "i = 1 AND", 10, []string{"expected a condition"}},
		{"reserved word", "i = 1 AND in = 2", 11, []string{"expected a condition"}},
		{"dot and no field", "group. = 1", 8, []string{"name of a field"}},
		{"number runs on", "i = 12abc", 5, []string{`cannot go on with 'a'`}},
		{"open string", "s = 'a''", 5, []string{"no closing '"}},
		{"open name", "`i = 1", 1, []string{"no closing `"}},
		{"empty name", `"" = 1`, 1, []string{"cannot be empty"}},
		{"odd bytes", "bin = X'abc'", 7, []string{"pairs of hexadecimal digits"}},
		{"odd character", "i = 1; DROP", 6, []string{`unexpected character ';'`}},
		{"typographic quote", "s = ’a’", 5, []string{`'’'`}},
		{"not UTF-8", "s = '\xff'", 6, []string{"UTF-8"}},
		{"too deep", strings.Repeat("(", 201) + "i = 1" + strings.Repeat(")", 201), 201, []string{"more than 200 parentheses"}},
		{"too long", strings.Repeat(" ", 64<<10) + "b", 1, []string{"65537 bytes, at most 65536"}},
		{"too long once spelt out", "b" + strings.Repeat(" AND b", 10<<10), 1, []string{"in canonical form"}},
	}
	schema := allTypes()
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse(tt.text, schema)
			var e *syntax.Error
			if !errors.As(err, &e) {
				t.Fatalf("error %v, want an *syntax.Error", err)
			}
			if e.Column != tt.column {
				t.Errorf("column %d, want %d: %v", e.Column, tt.column, err)
			}
			for _, part := range append(tt.want, fmt.Sprintf("column %d", tt.column)) {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("%q does not say %q", err, part)
				}
			}
			if strings.Contains(err.Error(), "\n") {
				t.Errorf("%q has more than one line", err)
			}
		})
	}
}

func TestLiterals(t *testing.T) {
	tests := []struct{ text, want string }{
		{"i = 2.0", "2"}, {"i = 1e6", "1000000"}, {"i = -0", "0"}, {"i = 20e-1", "2"}, {"l = 9223372036854775807", "9223372036854775807"},
		{"i = 0e99999", "0"}, {"f = 0.1", "0.1"}, {"d = 1e308", "1e+308"}, {"d = 0e-400", "0"},
		{"dec = 1.500", "1.50"}, {"dec = -12345678.9", "-12345678.90"}, {"wide = 1e32", "100000000000000000000000000000000.00000"},
		{"date = '1969-12-31'", "1969-12-31"}, {"date = DATE '0001-01-01'", "0001-01-01"}, {"time = '23:59'", "23:59:00.000000"},
		{"ts = '2023-01-02'", "2023-01-02 00:00:00.000000"}, {"ts = DATE '2023-01-02'", "2023-01-02 00:00:00.000000"},
		{"ts = TIMESTAMP '2023-01-02 03:04'", "2023-01-02 03:04:00.000000"}, {"ts = '1969-12-31t23:59:59.999999'", "1969-12-31 23:59:59.999999"},
		{"tz = '2023-01-02T03:04:05.6+02:30'", "2023-01-02 00:34:05.600000"}, {"tz = '2023-01-02 03:04:05 -05'", "2023-01-02 08:04:05.000000"},
		{"tz = '2023-01-02T03:04:05z'", "2023-01-02 03:04:05.000000"},
		{"tsns = '1677-09-22'", "1677-09-22 00:00:00.000000000"}, {"tzns = '2023-01-02T00:00:00.123456789+0000'", "2023-01-02 00:00:00.123456789"},
		{"u = UUID '123E4567-E89B-12D3-A456-426614174000'", "123e4567-e89b-12d3-a456-426614174000"}, {"fix = X'4142'", "AB"},
		{"s LIKE 'a'", "a"}, {"group.inner.z = ''", ""},
	}
	schema := allTypes()
	for _, tt := range tests {
		t.Run(tt.text, func(t *testing.T) {
			f, err := Parse(tt.text, schema)
			if err != nil {
				t.Fatal(err)
			}
			test, ok := f.Tree().(predicate.Test)
			if !ok || literal(test) != tt.want {
				t.Errorf("%s, want the literal %s", show(f.Tree()), tt.want)
			}
		})
	}
}

// literal formats the value of a test as one of its column's type.
func literal(t predicate.Test) string {
	v := t.Values[0]
	switch of := t.Field.Type.(type) {
	case *arrow.Date32Type:
		return arrow.Date32(v.Int).ToTime().Format("2006-01-02")
	case *arrow.Time64Type:
		return arrow.Time64(v.Int).ToTime(of.Unit).Format("15:04:05.000000")
	case *arrow.TimestampType:
		layout := "2006-01-02 15:04:05.000000"
		if of.Unit == arrow.Nanosecond {
			layout += "000"
		}
		return arrow.Timestamp(v.Int).ToTime(of.Unit).Format(layout)
	case *arrow.Decimal128Type:
		return v.Decimal.ToString(of.Scale)
	case arrow.ExtensionType:
		return uuid.UUID([]byte(v.Bytes)).String()
	case *arrow.Float32Type:
		return fmt.Sprint(float32(v.Float))
	}
	if v.Kind == column.Bytes {
		return v.Bytes
	}
	return v.String()
}

func TestTreeHasNoNot(t *testing.T) {
	f, err := Parse("NOT (i = 1 OR NOT s LIKE 'ab%' AND d < 2)", allTypes())
	if err != nil {
		t.Fatal(err)
	}
	if got, want := show(f.Tree()), `(NOT i = 1 AND ((s >= "ab" AND s < "ac") OR d >= 2 OR d IS NAN))`; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestPrefixRange(t *testing.T) {
	tests := []struct{ prefix, end string }{
		{"a", "b"}, {"az", "a{"}, {"é", "ê"}, {"\uD7FF", "\uE000"}, {"a\U0010FFFF", "b"}, {"\U0010FFFF", ""}, {"", ""},
	}
	for _, tt := range tests {
		want := fmt.Sprintf("s >= %q", tt.prefix)
		if tt.end != "" {
			want = fmt.Sprintf("(%s AND s < %q)", want, tt.end)
		}
		f, err := Parse("s LIKE '"+tt.prefix+"%'", allTypes())
		if err != nil || show(f.Tree()) != want {
			t.Errorf("prefix %q: %v: want %s", tt.prefix, err, want)
		}
	}
}

// TestLongClauses checks that trees of long clauses are shallow, since compiling and pruning recurse into them.
func TestLongClauses(t *testing.T) {
	for name, text := range map[string]string{
		"AND": strings.Repeat("i=1 AND ", 6500) + "i=1", "OR": strings.Repeat("i=1 OR ", 7000) + "i=1",
		"NOT": strings.Repeat("NOT ", 16000) + "i=1", "IN": "d IN (" + strings.Repeat("1,", 20000) + "1)",
		"siblings": strings.Repeat("(b)AND ", 4000) + "b", "parentheses": strings.Repeat("NOT (b OR ", 200) + "i=1" + strings.Repeat(")", 200),
	} {
		t.Run(name, func(t *testing.T) {
			f, err := Parse(text, allTypes())
			if err != nil {
				t.Fatal(err)
			}
			if d := depth(f.Tree()); d > 410 {
				t.Errorf("depth %d: want at most 410", d)
			}
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"", "i = 1", "NOT (s LIKE 'a%' OR d IS NOT NAN) AND l NOT IN (1, -2, +3)", "b AND NOT b", "1.5e3 >= d",
		`"odd name" BETWEEN 1 AND 2 OR group."inner".z <> 'it''s'`, "u = UUID '123e4567-e89b-12d3-a456-426614174000'",
		"tz < TIMESTAMP '2023-01-02T03:04:05.6+02:30'", "x'00' = bin", "s NOT LIKE '!%%' ESCAPE '!'", "((((TRUE))))",
		"date = DATE '2020-02-30'", "i = 1e99999999", "s = '\x00\U0010FFFF'", "a.`b``c`.\"d\" IS NULL", "TRUE = b", "date.x = 1",
	} {
		f.Add(text)
	}
	schema := allTypes()
	f.Fuzz(func(t *testing.T, text string) {
		canonical, err := syntax.Canonical(text)
		if err != nil {
			return
		}
		again, err := syntax.Canonical(canonical)
		if err != nil || again != canonical {
			t.Fatalf("%q becomes %q, then %q, %v", text, canonical, again, err)
		}
		bound, err := Parse(text, schema)
		if err != nil {
			return
		}
		same, err := Parse(canonical, schema)
		if err != nil || (same == nil) != (bound == nil) {
			t.Fatalf("%q can be bound, but canonically %v", text, err)
		}
		if bound != nil && show(same.Tree()) != show(bound.Tree()) {
			t.Fatalf("%q becomes %s, but canonically %s", text, show(bound.Tree()), show(same.Tree()))
		}
	})
}
