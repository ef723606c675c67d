// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"strconv"
	"strings"
)

// part is what of an object is asked for.
type part struct {
	first, length int64
	partial       bool
}

func whole(size int64) part { return part{length: size} }

// parseRange reads a Range header for an object of size bytes; ok is false if no byte of it is in the object. What is not
// one range of bytes is passed over and means the whole object, as RFC 9110, section 14.2, allows.
func parseRange(text string, size int64) (p part, ok bool) {
	spec, isBytes := strings.CutPrefix(text, "bytes=")
	from, to, isRange := strings.Cut(strings.TrimSpace(spec), "-")
	if !isBytes || !isRange || strings.Contains(spec, ",") {
		return whole(size), true
	}
	if from == "" { // the last so many
		n, err := strconv.ParseUint(to, 10, 63)
		if err != nil {
			return whole(size), true
		}
		n = min(n, uint64(size))
		return part{first: size - int64(n), length: int64(n), partial: true}, n > 0
	}
	first, err := strconv.ParseUint(from, 10, 63)
	last := uint64(size) - 1 // for size 0 no first is below it
	if err == nil && to != "" {
		last, err = strconv.ParseUint(to, 10, 63)
	}
	if err != nil || to != "" && last < first {
		return whole(size), true
	}
	if first >= uint64(size) {
		return part{}, false
	}
	last = min(last, uint64(size)-1)
	return part{first: int64(first), length: int64(last-first) + 1, partial: true}, true
}
