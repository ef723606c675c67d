// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package syntax

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Error describes an error in a WHERE clause and its position. Its message is one line.
type Error struct {
	Column   int    // position in the text, in characters from 1
	Fragment string // the text from that position on, truncated; empty at the end of the text
	Reason   string
}

// Error formats the position, the text there and the reason.
func (e *Error) Error() string {
	if e.Fragment == "" {
		return fmt.Sprintf("filter, column %d, at the end: %s", e.Column, e.Reason)
	}
	return fmt.Sprintf("filter, column %d, at %q: %s", e.Column, e.Fragment, e.Reason)
}

// fragmentLength is the number of characters of the text that an error shows.
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

// shown is the number of characters of a name or literal that an error shows.
const shown = 60

// Short truncates a name or literal for an error message.
func Short(part string) string {
	if runes := []rune(part); len(runes) > shown {
		return string(runes[:shown]) + "..."
	}
	return part
}
