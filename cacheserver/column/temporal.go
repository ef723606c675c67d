// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package column

import (
	"cmp"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
)

// The ISO 8601 formats of literals. A date without a time is midnight.
var (
	dateForm      = regexp.MustCompile(`^\d{4}-\d{2}-\d{2}$`)
	timeForm      = regexp.MustCompile(`^(\d{2}:\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)?$`)
	timestampForm = regexp.MustCompile(`^(\d{4}-\d{2}-\d{2})(?:[Tt ](\d{2}:\d{2})(?::(\d{2})(?:\.(\d{1,9}))?)? ?([Zz]|[+-]\d{2}(?::?\d{2})?)?)?$`)
)

func parseDate(l syntax.Literal, _ arrow.DataType) (Value, string) {
	day, err := time.Parse(time.DateOnly, l.Value)
	if l.Kind != syntax.StringLiteral && l.Kind != syntax.DateLiteral || err != nil || !dateForm.MatchString(l.Value) {
		return Value{}, "want a date such as '2026-01-31'"
	}
	const daySeconds = 24 * 60 * 60 // time.Time.Unix of a midnight is a multiple of it
	return IntValue(day.Unix() / daySeconds), ""
}

func parseTime(l syntax.Literal, t arrow.DataType) (Value, string) {
	const want = "want a time such as '23:59:59.999999'"
	parts := timeForm.FindStringSubmatch(l.Value)
	if l.Kind != syntax.StringLiteral && l.Kind != syntax.TimeLiteral || parts == nil {
		return Value{}, want
	}
	clock, err := time.Parse(time.TimeOnly, parts[1]+":"+cmp.Or(parts[2], "00"))
	if err != nil {
		return Value{}, want
	}
	hour, minute, second := clock.Clock()
	return inUnit(int64(hour*3600+minute*60+second), parts[3], t.(arrow.TemporalWithUnit).TimeUnit())
}

// parseTimestamp parses a date, or a date and a time of day, with or without a zone.
func parseTimestamp(l syntax.Literal, t arrow.DataType) (Value, string) {
	zoned := t.(*arrow.TimestampType).TimeZone != ""
	want := "want a timestamp such as '2026-01-31T23:59:59.5'"
	if zoned {
		want = "want a timestamp such as '2026-01-31T23:59:59.5+01:00'"
	}
	parts := timestampForm.FindStringSubmatch(l.Value)
	dateOnly := l.Kind == syntax.DateLiteral && dateForm.MatchString(l.Value)
	if !dateOnly && l.Kind != syntax.StringLiteral && l.Kind != syntax.TimestampLiteral || parts == nil {
		return Value{}, want
	}
	at, err := time.Parse(time.DateTime, parts[1]+" "+cmp.Or(parts[2], "00:00")+":"+cmp.Or(parts[3], "00"))
	if err != nil {
		return Value{}, want
	}
	switch {
	case parts[5] != "" && !zoned:
		return Value{}, "the column has no time zone, so leave the zone out"
	case parts[5] == "" && zoned:
		text := parts[0]
		if parts[2] == "" {
			text += "T00:00:00"
		}
		return Value{}, fmt.Sprintf("the column has a time zone, so add one: '%sZ' if it is in UTC", text)
	}
	offset, ok := zone(parts[5])
	if !ok {
		return Value{}, "the time zone is not one"
	}
	return inUnit(at.Unix()-offset, parts[4], t.(*arrow.TimestampType).Unit)
}

var unitNames = map[arrow.TimeUnit]string{arrow.Second: "seconds", arrow.Millisecond: "milliseconds", arrow.Microsecond: "microseconds"}

// inUnit returns a time of some seconds, and a fraction of one, in a unit; a reason if the unit can't represent it.
func inUnit(seconds int64, fraction string, unit arrow.TimeUnit) (Value, string) {
	nanos, err := strconv.ParseInt((fraction + "000000000")[:9], 10, 64)
	scale := int64(unit.Multiplier()) // nanoseconds
	if err != nil || nanos%scale != 0 {
		return Value{}, "the column holds " + unitNames[unit]
	}
	const limit = 9_223_372_036 // number of seconds whose nanoseconds fit in an int64
	if unit == arrow.Nanosecond && (seconds >= limit || seconds < -limit) {
		return Value{}, "the column holds nanoseconds, from the year 1677 to 2262"
	}
	return IntValue(seconds*(int64(time.Second)/scale) + nanos/scale), ""
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
