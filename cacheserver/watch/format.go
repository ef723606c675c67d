// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"strconv"
	"time"
)

// FormatCount writes a number with at most three digits before a unit of thousands: 12.3 M.
func FormatCount(n float64) string {
	return scaled(n, 1000, []string{"", " k", " M", " G", " T", " P"})
}

// FormatBytes writes a number of bytes in binary units: 12.3 MiB.
func FormatBytes(n float64) string {
	return scaled(n, 1024, []string{" B", " KiB", " MiB", " GiB", " TiB", " PiB"})
}

// FormatRatio writes a part of 1 as a percentage.
func FormatRatio(n float64) string { return strconv.Itoa(int(n*100+0.5)) + " %" }

func scaled(n, step float64, units []string) string {
	unit := 0
	for ; n >= step && unit < len(units)-1; unit++ {
		n /= step
	}
	precision := 1
	if unit == 0 || n >= 100 {
		precision = 0
	}
	return strconv.FormatFloat(n, 'f', precision, 64) + units[unit]
}

func (u Unit) format(n float64) string {
	switch u {
	case Bytes:
		return FormatBytes(n)
	case Ratio:
		return FormatRatio(n)
	case Count:
	}
	return FormatCount(n)
}

// formatDuration writes a time span in its two largest units: 2 min 5 s.
func formatDuration(d time.Duration) string {
	d = d.Round(time.Second)
	switch {
	case d >= time.Hour:
		return fmt.Sprintf("%d h %d min", d/time.Hour, d%time.Hour/time.Minute)
	case d >= time.Minute:
		return fmt.Sprintf("%d min %d s", d/time.Minute, d%time.Minute/time.Second)
	}
	return fmt.Sprintf("%d s", d/time.Second)
}

// Text returns a cell of text.
func Text(s string) Cell { return Cell{Text: s} }

// Number returns a cell of a number, which is not redacted.
func Number(s string) Cell { return Cell{Text: s, Number: true} }

// Toned returns a cell of text with a mark in the tone's color.
func Toned(s string, tone Tone) Cell { return Cell{Text: s, Tone: tone} }
