// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"strconv"
	"strings"
)

// byteRange is the requested part of an object.
type byteRange struct {
	first, length int64
	partial       bool
}

func whole(size int64) byteRange { return byteRange{length: size} }

// parseRange parses a Range header for an object of size bytes. ok is false if the range is not satisfiable. Anything but a single
// byte range is ignored and means the whole object, as RFC 9110, section 14.2, allows.
func parseRange(text string, size int64) (r byteRange, ok bool) {
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
		return byteRange{first: size - int64(n), length: int64(n), partial: true}, n > 0
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
		return byteRange{}, false
	}
	last = min(last, uint64(size)-1)
	return byteRange{first: int64(first), length: int64(last-first) + 1, partial: true}, true
}
