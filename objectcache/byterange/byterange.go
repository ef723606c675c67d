// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package byterange answers the Range header of HTTP requests.
package byterange

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
)

// Range is the requested part of an object, in bytes.
type Range struct {
	First, Length int64
	Partial       bool // the response is 206
}

// Of returns the range of an object of size bytes that a request asks for. If there is no such range, it has answered the request.
func Of(w http.ResponseWriter, r *http.Request, size int64) (asked Range, ok bool) {
	text := ""
	if r.Method == http.MethodGet && r.Header.Get("If-Range") == "" {
		text = r.Header.Get("Range")
	}
	if asked, ok = Parse(text, size); !ok {
		w.Header().Set("Content-Range", fmt.Sprintf("bytes */%d", size))
		http.Error(w, fmt.Sprintf("the object has %d bytes", size), http.StatusRequestedRangeNotSatisfiable)
	}
	return asked, ok
}

// Header sets the fields of a response with the range of an object of size bytes, and returns its status.
func (r Range) Header(header http.Header, size int64) (status int) {
	header.Set("Accept-Ranges", "bytes")
	header.Set("Content-Length", strconv.FormatInt(r.Length, 10))
	if !r.Partial {
		return http.StatusOK
	}
	header.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", r.First, r.First+r.Length-1, size))
	return http.StatusPartialContent
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
