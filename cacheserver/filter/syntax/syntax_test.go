// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package syntax

import (
	"errors"
	"strings"
	"testing"
)

func TestCanonical(t *testing.T) {
	tests := []struct {
		want  string
		texts []string
	}{
		{"TRUE", []string{"", " \n\t", "true", "NOT false", "(((TRUE)))"}},
		{"a = 1", []string{"a=1", " a\t==  1 ", "(a = 1)", "1 = a", `"a" = 1`, "`a`=+1", "NOT NOT a = 1", "not (not (a=1))"}},
		{"a < -1.5e3", []string{"a < - 1.5E3", "-1.5e3 > a"}},
		{"a <> 'it''s'", []string{"a!='it''s'", "'it''s' <> a"}},
		{"NOT a = 1", []string{"not a=1", "NOT (a = 1)", "NOT NOT NOT 1=a"}},
		{"a IN (1, 2, 1)", []string{"a in(1,2,1)"}},
		{"a NOT IN (1)", []string{"not a in (1)", "a not in (1)"}},
		{"a NOT BETWEEN 1 AND 2 AND b = TRUE", []string{"(a not between 1 and 2) and b", "NOT a BETWEEN 1 AND 2 AND b==true"}},
		{"a LIKE 'x%'", []string{"a like 'x%'", "a LIKE 'x%%'", "a LIKE 'x%' ESCAPE '#'"}},
		{"a NOT LIKE '5!%!_!!%' ESCAPE '!'", []string{`a not like '5\%\_!%' escape '\'`}},
		{"a = '5%'", []string{"a LIKE '5!%' ESCAPE '!'"}},
		{"a LIKE '%'", []string{"a like '%'"}},
		{"a IS NOT NULL OR a IS NAN", []string{"a is not null or (a is nan)", "not (a is null) or a IS NAN"}},
		{"a = 1 OR b = 2 AND NOT (c = 3 OR d = 4)", []string{"a = 1 OR (b = 2 AND NOT (c = 3 OR d = 4))"}},
		{"(a = 1 OR b = 2) AND c = 3", []string{"((a=1)OR(b=2))AND c=3"}},
		{"a = 1 AND b = 2 AND c = 3", []string{"a=1 AND (b=2 AND c=3)", "(a=1 AND b=2) AND c=3", "a=1 AND NOT NOT (b=2 AND c=3)"}},
		{`a."odd name"."qu""ote"."in" = X'0AFF'`, []string{"a.`odd name`.\"qu\"\"ote\".`in`=x'0aff'"}},
		{"date > DATE '2020-01-01' AND time = TIME '10:00'", []string{"date > date '2020-01-01' and time=time'10:00'"}},
		{"a = TIMESTAMP '2020-01-01' OR a = UUID 'x'", []string{"a=timestamptz '2020-01-01' or a = uuid 'x'"}},
		{"ünï_1$ = .5", nil},
		{"a BETWEEN .5 AND 1.", []string{"a between .5 and 1."}},
	}
	for _, tt := range tests {
		for _, text := range append(tt.texts, tt.want) {
			got, err := Canonical(text)
			if err != nil || got != tt.want {
				t.Errorf("Canonical(%q) = %q, %v: want %q", text, got, err, tt.want)
			}
		}
	}
}

// TestParseRefuses covers a few errors; the tests of cacheserver/filter cover all of them through this package.
func TestParseRefuses(t *testing.T) {
	tests := []struct {
		name, text string
		column     int
		reason     string
	}{
		{"no literal", "label >=", 9, "expected a literal"},
		{"another language", "label == 1 && lang = 'en'", 12, "unexpected character '&'"},
		{"statement", "SELECT * FROM t", 8, "unexpected character '*'"},
		{"behind other letters", "ü = 'é' AND", 12, "expected a condition"},
		{"too long", strings.Repeat(" ", 64<<10) + "b", 1, "at most 65536 are allowed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Parse(tt.text)
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("%v: want an *Error", err)
			}
			if e.Column != tt.column || !strings.Contains(e.Reason, tt.reason) {
				t.Errorf("%v: want %q at column %d", err, tt.reason, tt.column)
			}
		})
	}
}
