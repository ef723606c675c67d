// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package words writes numbers with their units, and who waits for whom, in one form for all pages and commands.
package words

import (
	"math"
	"strconv"
	"unicode/utf8"
)

// Count writes a number with at most three digits before a unit of thousands: 12.3 M.
func Count(n float64) string {
	return scaled(n, 1000, []string{"", " k", " M", " G", " T", " P"})
}

// Bytes writes a number of bytes in binary units: 12.3 MiB.
func Bytes(n float64) string {
	return scaled(n, 1024, []string{" B", " KiB", " MiB", " GiB", " TiB", " PiB"})
}

// ExactBytes writes a number of bytes in full, and in a binary unit: 5368709120 bytes (5.0 GiB).
func ExactBytes(n int64) string {
	if n < 1024 {
		return strconv.FormatInt(n, 10) + " bytes"
	}
	return strconv.FormatInt(n, 10) + " bytes (" + Bytes(float64(n)) + ")"
}

// Ratio writes a part of 1 as a percentage.
func Ratio(n float64) string {
	if part := n * 100; part > 0 && part < 1 {
		return scaled(part, 1000, []string{" %"})
	}
	return strconv.Itoa(int(n*100+0.5)) + " %"
}

// Cut returns a text of at most the given number of bytes: it ends with "..." if it was longer.
func Cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	const end = "..."
	most -= len(end)
	for most > 0 && !utf8.RuneStart(text[most]) {
		most--
	}
	return text[:most] + end
}

// scaled never writes 0 for a number that is more: it may be the largest one of a chart.
func scaled(n, step float64, units []string) string {
	unit := 0
	for ; n >= step && unit < len(units)-1; unit++ {
		n /= step
	}
	precision := 1
	switch {
	case n > 0 && n < 0.05:
		return "< 0.1" + units[unit]
	case n >= 100, unit == 0 && n == math.Trunc(n):
		precision = 0
	}
	return strconv.FormatFloat(n, 'f', precision, 64) + units[unit]
}

// WhoWaits says what the streams of a reader wait for: rows is how many a second it gets; blocked the part of their time in which a message
// waited for the client, work that in which the data node made the next one.
func WhoWaits(streams int, rows, blocked, work float64) string {
	switch {
	case streams == 0:
		return "finished"
	case blocked >= 0.5:
		return "the cache waits for the client"
	case work >= 0.5:
		return "the client waits for the cache"
	case rows == 0:
		return "idle"
	}
	return "neither, much"
}
