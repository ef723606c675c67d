// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package syntax

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Error is what is wrong with a WHERE clause and where. Its message is one line.
type Error struct {
	Column   int    // the place in the text, in characters from 1
	Fragment string // the text from there on, cut short; empty at the end of the text
	Reason   string
}

// Error names the place, shows the text there and says what is wrong.
func (e *Error) Error() string {
	if e.Fragment == "" {
		return fmt.Sprintf("filter, column %d, at the end: %s", e.Column, e.Reason)
	}
	return fmt.Sprintf("filter, column %d, at %q: %s", e.Column, e.Fragment, e.Reason)
}

// fragmentLength is how many characters of the text an error shows.
const fragmentLength = 24

// ErrorAt is an *Error at a byte offset of the text; the reason is formatted as by fmt.Sprintf.
func ErrorAt(text string, offset int, format string, args ...any) error {
	rest := []rune(strings.ToValidUTF8(text[offset:min(len(text), offset+4*fragmentLength)], "\uFFFD"))
	fragment := string(rest)
	if len(rest) > fragmentLength {
		fragment = string(rest[:fragmentLength]) + "..."
	}
	return &Error{
		Column:   utf8.RuneCountInString(text[:offset]) + 1,
		Fragment: fragment,
		Reason:   fmt.Sprintf(format, args...),
	}
}

// shown is how many characters of a name or literal an error repeats.
const shown = 60

// Short cuts what an error repeats of the text.
func Short(part string) string {
	if runes := []rune(part); len(runes) > shown {
		return string(runes[:shown]) + "..."
	}
	return part
}
