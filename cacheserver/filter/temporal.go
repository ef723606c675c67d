// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package filter

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/apache/iceberg-go"

	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
)

// The ISO 8601 formats of literals. A date without a time is midnight.
var (
	dateForm      = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}$`)
	timeForm      = regexp.MustCompile(`^(\d{2}:\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?$`)
	timestampForm = regexp.MustCompile(`^(\d{4}-\d{2}-\d{2})(?:[Tt ](\d{2}:\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)? ?([Zz]|[+-]\d{2}(?::?\d{2})?)?)?$`)
)

// convertTime converts the literal to the type of a date, time or timestamp column, or returns the reason why it does not fit.
func convertTime(l syntax.Literal, typ iceberg.Type) (iceberg.Literal, string) {
	switch typ.(type) {
	case iceberg.DateType:
		return date(l)
	case iceberg.TimeType:
		return timeOfDay(l)
	case iceberg.TimestampType:
		return timestamp(l, false, false)
	case iceberg.TimestampTzType:
		return timestamp(l, true, false)
	case iceberg.TimestampNsType:
		return timestamp(l, false, true)
	case iceberg.TimestampTzNsType:
		return timestamp(l, true, true)
	}
	return nil, "values of this type cannot be compared"
}

func date(l syntax.Literal) (iceberg.Literal, string) {
	const want = "want a date such as '2026-01-31'"
	if l.Kind != syntax.StringLiteral && l.Kind != syntax.DateLiteral || !dateForm.MatchString(l.Value) {
		return nil, want
	}
	day, err := time.Parse(time.DateOnly, l.Value)
	if err != nil {
		return nil, want
	}
	const daySeconds = 24 * 60 * 60 // time.Time.Unix of a midnight is a multiple of it
	return iceberg.DateLiteral(day.Unix() / daySeconds), ""
}

func timeOfDay(l syntax.Literal) (iceberg.Literal, string) {
	const want = "want a time such as '23:59:59.999999'"
	parts := timeForm.FindStringSubmatch(l.Value)
	if l.Kind != syntax.StringLiteral && l.Kind != syntax.TimeLiteral || parts == nil {
		return nil, want
	}
	clock, err := time.Parse(time.TimeOnly, parts[1]+":"+orZero(parts[2]))
	if err != nil {
		return nil, want
	}
	nanos, exact := fraction(parts[3], false)
	if !exact {
		return nil, "the column holds microseconds"
	}
	hour, minute, second := clock.Clock()
	return iceberg.TimeLiteral(int64(hour*3600+minute*60+second)*1e6 + nanos/1000), ""
}

// timestamp parses a date, or a date and a time of day, with or without a zone.
func timestamp(l syntax.Literal, zoned, nanoseconds bool) (iceberg.Literal, string) {
	want := "want a timestamp such as '2026-01-31T23:59:59.5'"
	if zoned {
		want = "want a timestamp such as '2026-01-31T23:59:59.5+01:00'"
	}
	parts := timestampForm.FindStringSubmatch(l.Value)
	dateOnly := l.Kind == syntax.DateLiteral && dateForm.MatchString(l.Value)
	if !dateOnly && l.Kind != syntax.StringLiteral && l.Kind != syntax.TimestampLiteral || parts == nil {
		return nil, want
	}
	clock := parts[2] + ":" + orZero(parts[3])
	if parts[2] == "" {
		clock = "00:00:00"
	}
	at, err := time.Parse(time.DateTime, parts[1]+" "+clock)
	if err != nil {
		return nil, want
	}
	switch {
	case parts[5] != "" && !zoned:
		return nil, "the column has no time zone, so leave the zone out"
	case parts[5] == "" && zoned:
		return nil, fmt.Sprintf("the column has a time zone, so add one: '%sZ' if it is in UTC", withClock(parts))
	}
	offset, ok := zone(parts[5])
	if !ok {
		return nil, "the time zone is not one"
	}
	nanos, exact := fraction(parts[4], nanoseconds)
	if !exact {
		return nil, "the column holds microseconds"
	}
	seconds := at.Unix() - offset
	if !nanoseconds {
		return iceberg.TimestampLiteral(seconds*1e6 + nanos/1000), ""
	}
	const limit = 9_223_372_036 // number of seconds whose nanoseconds fit in an int64
	if seconds >= limit || seconds < -limit {
		return nil, "the column holds nanoseconds, from the year 1677 to 2262"
	}
	return iceberg.TimestampNsLiteral(seconds*1e9 + nanos), ""
}

// withClock returns the literal that timestampForm parsed; midnight is written out.
func withClock(parts []string) string {
	if parts[2] == "" {
		return parts[1] + "T00:00:00"
	}
	return parts[0]
}

func orZero(seconds string) string {
	if seconds == "" {
		return "00"
	}
	return seconds
}

// fraction is the fraction of a second in nanoseconds; exact is false if a column of microseconds would truncate it.
func fraction(digits string, nanoseconds bool) (nanos int64, exact bool) {
	nanos, err := strconv.ParseInt((digits + "000000000")[:9], 10, 64)
	return nanos, err == nil && (nanoseconds || nanos%1000 == 0)
}

// zone parses the offset of a time zone from UTC, in seconds. Columns without a time zone have an empty zone.
func zone(text string) (offset int64, ok bool) {
	if text == "" || text == "Z" || text == "z" {
		return 0, true
	}
	digits := strings.Replace(text[1:], ":", "", 1) + "00"
	hours, err := strconv.ParseInt(digits[:2], 10, 64)
	if err != nil || hours > 18 {
		return 0, false
	}
	minutes, err := strconv.ParseInt(digits[2:4], 10, 64)
	if err != nil || minutes > 59 {
		return 0, false
	}
	offset = hours*3600 + minutes*60
	if text[0] == '-' {
		offset = -offset
	}
	return offset, true
}
