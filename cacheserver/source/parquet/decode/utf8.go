// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"encoding/binary"
	"fmt"
	"unicode/utf8"
)

// TextError is the error for a string that is not valid UTF-8.
type TextError struct {
	// Index is the position of the string among those that were checked together, without nulls.
	Index int
	value []byte
}

// shown is the maximum number of bytes of a string that an error shows.
const shown = 60

// Error shows the string and says what to do.
func (e *TextError) Error() string {
	text := fmt.Sprintf("%q", e.value[:min(len(e.value), shown)])
	if len(e.value) > shown {
		text += fmt.Sprintf(" and %d more bytes", len(e.value)-shown)
	}
	return "the string " + text + " is not valid UTF-8: leave the column out, or rewrite the file"
}

// CheckText checks that strings are valid UTF-8. They are stored one after another in data; string i begins where string i-1 ends,
// the first at start, and ends at ends[i]. The error is a *TextError.
func CheckText[O int32 | int64](data []byte, start O, ends []O) error {
	if len(ends) == 0 {
		return nil
	}
	all := data[start:ends[len(ends)-1]]
	if asciiPrefix(all) == len(all) {
		return nil
	}
	if valid(all) && whole(data, start, ends) {
		return nil
	}
	for i, end := range ends {
		if value := data[start:end]; !utf8.Valid(value) {
			return &TextError{Index: i, value: value}
		}
		start = end
	}
	return nil
}

// whole reports whether no string begins within a character. Together they are valid UTF-8.
func whole[O int32 | int64](data []byte, start O, ends []O) bool {
	last := ends[len(ends)-1]
	for _, end := range ends {
		if start < last && !utf8.RuneStart(data[start]) {
			return false
		}
		start = end
	}
	return true
}

// nonASCII has the bit of every byte that is set in no ASCII character.
const nonASCII = 0x8080808080808080

// asciiPrefix returns a position up to which all bytes of b are ASCII; len(b) if all are.
func asciiPrefix(b []byte) int {
	at := 0
	for ; len(b)-at >= 32; at += 32 {
		p := b[at : at+32 : at+32]
		if (binary.LittleEndian.Uint64(p)|binary.LittleEndian.Uint64(p[8:])|
			binary.LittleEndian.Uint64(p[16:])|binary.LittleEndian.Uint64(p[24:]))&nonASCII != 0 {
			return at
		}
	}
	for ; at < len(b); at++ {
		if b[at] >= utf8.RuneSelf {
			return at
		}
	}
	return at
}

// blockBytes is the length of a block of validBlocks.
const blockBytes = 32

// valid is utf8.Valid, about ten times as fast where hasBlocks.
func valid(b []byte) bool {
	whole := len(b) &^ (blockBytes - 1)
	if !hasBlocks || whole == 0 {
		return utf8.Valid(b)
	}
	if !validBlocks(&b[0], whole) {
		return false
	}
	for n := 0; n < utf8.UTFMax && !utf8.RuneStart(b[whole-1]); n++ {
		whole--
	}
	return utf8.Valid(b[whole-1:]) // with the last character of the blocks, which may be incomplete there
}
