// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// visible writes text to out with every character that a terminal might obey, or not show, as an escape such as \x1b: names and messages come
// from whoever may create objects in the cluster. Newlines and tabs stay. It is safe for concurrent use.
type visible struct {
	mu   sync.Mutex
	out  io.Writer
	rest []byte // the beginning of a character that the last Write ended with
}

// Write implements io.Writer.
func (v *visible) Write(text []byte) (int, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	in := append(v.rest, text...)
	v.rest = nil
	var shown strings.Builder
	for len(in) > 0 {
		r, size := utf8.DecodeRune(in)
		switch {
		case r == utf8.RuneError && size == 1 && !utf8.FullRune(in):
			v.rest, size = in, len(in)
		case r == utf8.RuneError && size == 1:
			fmt.Fprintf(&shown, `\x%02x`, in[0])
		case r == '\n' || r == '\t' || unicode.IsGraphic(r):
			shown.WriteRune(r)
		case r < utf8.RuneSelf:
			fmt.Fprintf(&shown, `\x%02x`, r)
		case r <= 0xffff:
			fmt.Fprintf(&shown, `\u%04x`, r)
		default:
			fmt.Fprintf(&shown, `\U%08x`, r)
		}
		in = in[size:]
	}
	if _, err := io.WriteString(v.out, shown.String()); err != nil {
		return 0, err
	}
	return len(text), nil
}

// indented indents all lines of a text but the first, so that none looks like a line of the command's own.
func indented(text string, by int) string {
	return strings.ReplaceAll(text, "\n", "\n"+strings.Repeat(" ", by))
}
