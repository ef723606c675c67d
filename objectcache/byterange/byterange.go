// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package byterange parses the Range header of HTTP requests.
package byterange

import (
	"fmt"
	"strconv"
	"strings"
)

// Range is the requested part of an object, in bytes.
type Range struct {
	First, Length int64
	Partial       bool // the response is 206
}

// Header returns the response's Content-Range for an object of size bytes.
func (r Range) Header(size int64) string {
	return fmt.Sprintf("bytes %d-%d/%d", r.First, r.First+r.Length-1, size)
}

func whole(size int64) Range { return Range{Length: size} }

// Parse parses a Range header for an object of size bytes. ok is false if the range is not satisfiable. Anything but a single
// byte range is ignored and means the whole object, as RFC 9110, section 14.2, allows.
func Parse(text string, size int64) (r Range, ok bool) {
	spec, isBytes := strings.CutPrefix(text, "bytes=")
	from, to, isRange := strings.Cut(strings.TrimSpace(spec), "-")
	if !isBytes || !isRange || strings.Contains(spec, ",") {
		return whole(size), true
	}
	if from == "" { // a suffix length
		n, err := strconv.ParseUint(to, 10, 63)
		if err != nil {
			return whole(size), true
		}
		n = min(n, uint64(size))
		return Range{First: size - int64(n), Length: int64(n), Partial: true}, n > 0
	}
	first, err := strconv.ParseUint(from, 10, 63)
	last := uint64(size) - 1 // for size 0 every first is larger, so nothing is satisfiable
	if err == nil && to != "" {
		last, err = strconv.ParseUint(to, 10, 63)
	}
	if err != nil || to != "" && last < first {
		return whole(size), true
	}
	if first >= uint64(size) {
		return Range{}, false
	}
	last = min(last, uint64(size)-1)
	return Range{First: int64(first), Length: int64(last-first) + 1, Partial: true}, true
}
