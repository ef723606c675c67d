// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"net/url"
	"strings"

	"golang.org/x/net/http/httpguts"
)

// simple is a request that can be answered without net/http: a GET or HEAD of HTTP/1.1 with no body, after which the
// connection stays open.
type simple struct {
	method, target string
	// Values of header fields; empty for those that did not come.
	host, authorization, byRange, hop string
}

// parseSimple reads one request at the beginning of b and says how many bytes it has. ok is false for one that is not simple,
// not all there, or in any way doubtful: net/http then judges it. What it takes, net/http takes for the same request
// (FuzzParseSimple).
func parseSimple(b []byte) (r simple, size int, ok bool) {
	head, _, ok := strings.Cut(string(b), "\r\n\r\n")
	if !ok {
		return simple{}, 0, false
	}
	size = len(head) + len("\r\n\r\n")
	line, fields, _ := strings.Cut(head, "\r\n")
	r.method, line, _ = strings.Cut(line, " ")
	r.target, line, _ = strings.Cut(line, " ")
	if r.method != "GET" && r.method != "HEAD" || line != "HTTP/1.1" || !strings.HasPrefix(r.target, prefix) {
		return simple{}, 0, false
	}
	if _, err := url.ParseRequestURI(r.target); err != nil {
		return simple{}, 0, false
	}
	for fields != "" {
		line, fields, _ = strings.Cut(fields, "\r\n")
		name, value, colon := strings.Cut(line, ":")
		value = strings.Trim(value, " \t")
		if !colon || !httpguts.ValidHeaderFieldName(name) || !httpguts.ValidHeaderFieldValue(value) || !r.field(name, value) {
			return simple{}, 0, false
		}
	}
	return r, size, r.host != ""
}

// field takes one header field in. It is false for what must not come twice, and for what makes a request not simple.
func (r *simple) field(name, value string) bool {
	switch strings.ToLower(name) {
	case "host":
		return setOnce(&r.host, value) && httpguts.ValidHostHeader(value)
	case "authorization":
		return setOnce(&r.authorization, value)
	case "range":
		return setOnce(&r.byRange, value)
	case "connection":
		return strings.EqualFold(value, "keep-alive")
	case "datacache-hop": // hopHeader
		return setOnce(&r.hop, value)
	case "content-length", "transfer-encoding", "trailer", "te", "expect", "upgrade", "if-range":
		return false
	}
	return true
}

// setOnce is false for a second value, and for none, which it could not tell from a field that did not come.
func setOnce(to *string, value string) bool {
	if *to != "" {
		return false
	}
	*to = value
	return value != ""
}
