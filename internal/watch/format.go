// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"time"

	"github.com/kubeflow/datacache/internal/words"
)

func (u Unit) format(n float64) string {
	switch u {
	case Bytes:
		return words.Bytes(n)
	case Ratio:
		return words.Ratio(n)
	case Count:
	}
	return words.Count(n)
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
