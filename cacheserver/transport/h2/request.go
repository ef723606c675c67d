// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// request is the content of a stream's first header block.
type request struct {
	path        string
	contentType string
	timeout     time.Duration // negative: none
	length      int64         // length of the body; negative: unknown
	metadata    metadata.MD
	code        int            // HTTP status of the response
	refusal     *status.Status // status for valid HTTP/2 that is not a gRPC call; nil: it is a call
	early       bool           // refusal is sent before the request has arrived
}

// errMalformed is the cause of a stream error, RFC 9113 section 8.1.1.
var errMalformed = errors.New("malformed request")

// parseRequest parses header fields whose order and form the framer has checked.
func parseRequest(fields []hpack.HeaderField) (request, error) {
	r := request{timeout: -1, length: -1, metadata: metadata.MD{}, code: http.StatusOK}
	pseudo := map[string]string{}
	for _, f := range fields {
		if f.IsPseudo() {
			pseudo[f.Name] = f.Value
			continue
		}
		if err := r.field(f.Name, f.Value); err != nil {
			return r, err
		}
	}
	if pseudo[":method"] == "" || pseudo[":scheme"] == "" || pseudo[":path"] == "" {
		return r, fmt.Errorf("%w: want :method, :scheme and :path", errMalformed)
	}
	r.path = pseudo[":path"]
	r.authority(pseudo[":authority"])
	if pseudo[":method"] != http.MethodPost {
		r.refuse(http.StatusMethodNotAllowed, codes.Internal, "method %.16q, want POST: this server speaks gRPC", pseudo[":method"])
	}
	if !isGRPC(r.contentType) {
		r.refuse(http.StatusUnsupportedMediaType, codes.InvalidArgument, "content-type %.64q, want %s", r.contentType, grpcType)
		r.contentType = plainType
	}
	return r, nil
}

func (r *request) refuse(code int, kind codes.Code, format string, args ...any) {
	if r.refusal == nil {
		r.code, r.refusal = code, status.Newf(kind, format, args...)
	}
}

// field parses one regular field.
func (r *request) field(name, value string) error {
	switch name {
	case "connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade":
		return fmt.Errorf("%w: field %s, which HTTP/2 does not have", errMalformed, name)
	case "te":
		if value != "trailers" {
			return fmt.Errorf("%w: te %.32q, want trailers", errMalformed, value)
		}
	case "content-length":
		length, err := strconv.ParseInt(value, 10, 64)
		if err != nil || length < 0 {
			return fmt.Errorf("%w: content-length %.32q", errMalformed, value)
		}
		r.length = length
	case "content-type":
		r.contentType = value
		r.metadata.Append(name, value)
	case "grpc-timeout":
		timeout, err := parseTimeout(value)
		if err != nil {
			r.refuse(http.StatusBadRequest, codes.Internal, "%v", err)
		}
		r.timeout = timeout
	case "grpc-encoding":
		if value != "identity" && value != "" {
			r.refuse(http.StatusOK, codes.Unimplemented, "grpc-encoding %.32q: want identity, this server takes no compressed messages", value)
		}
	default:
		r.add(name, value)
	}
	return nil
}

// add adds a field to the handler's metadata.
func (r *request) add(name, value string) {
	if isReserved(name) {
		return
	}
	if strings.HasSuffix(name, "-bin") {
		// PROTOCOL-HTTP2.md requires accepting padded and unpadded values.
		decoded, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(value, "="))
		if err != nil {
			r.refuse(http.StatusBadRequest, codes.Internal, "%s: %v", name, err)
			return
		}
		value = string(decoded)
	}
	r.metadata.Append(name, value)
}

// authority sets the server's name from :authority or host, according to gRFC A41.
func (r *request) authority(name string) {
	hosts := r.metadata.Get("host")
	r.metadata.Delete("host")
	if len(hosts) > 1 {
		r.refuse(http.StatusBadRequest, codes.Internal, "%d host fields, want one", len(hosts))
	}
	if name == "" && len(hosts) > 0 {
		name = hosts[0]
	}
	if name == "" {
		r.refuse(http.StatusBadRequest, codes.Internal, "neither :authority nor host")
	}
	r.metadata.Set(":authority", name)
}

// isGRPC reports whether a content type is application/grpc, alone or followed by +codec or ;parameters.
func isGRPC(contentType string) bool {
	rest, ok := strings.CutPrefix(strings.ToLower(contentType), grpcType)
	return ok && (rest == "" || rest[0] == '+' || rest[0] == ';')
}

const (
	grpcType  = "application/grpc"
	plainType = "text/plain; charset=utf-8" // of responses to clients that don't use gRPC
)

// isReserved reports whether a field name is reserved by gRPC.
func isReserved(name string) bool {
	return strings.HasPrefix(name, ":") || strings.HasPrefix(name, "grpc-") || name == "content-type" || name == "te"
}

// parseTimeout parses a grpc-timeout: up to eight digits and a unit.
func parseTimeout(text string) (time.Duration, error) {
	units := map[byte]time.Duration{'H': time.Hour, 'M': time.Minute, 'S': time.Second, 'm': time.Millisecond, 'u': time.Microsecond, 'n': time.Nanosecond}
	if len(text) < 2 || len(text) > 9 {
		return 0, fmt.Errorf("grpc-timeout %.16q: want 1 to 8 digits and a unit", text)
	}
	number, err := strconv.ParseUint(text[:len(text)-1], 10, 32)
	unit, known := units[text[len(text)-1]]
	if err != nil || !known {
		return 0, fmt.Errorf("grpc-timeout %.16q: want 1 to 8 digits and one of H M S m u n", text)
	}
	return min(time.Duration(number), maxTimeout/unit) * unit, nil
}

// maxTimeout is longer than any call: the maximum, 99999999 hours, does not fit in a time.Duration.
const maxTimeout = 100 * 365 * 24 * time.Hour

// onHeaders begins a call, or processes the trailers of one.
func (c *conn) onHeaders(f *http2.MetaHeadersFrame) error {
	if f.HasPriority() && f.Priority.StreamDep == f.StreamID {
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol, Cause: errors.New("a stream depends on itself")}
	}
	if f.StreamID%2 == 0 {
		return violated(http2.ErrCodeProtocol, "HEADERS for stream %d: a client's are odd", f.StreamID)
	}
	c.mu.Lock()
	open := c.streams.open[f.StreamID]
	c.mu.Unlock()
	switch {
	case open != nil:
		return open.trailers(f)
	case f.StreamID <= c.newest:
		return violated(http2.ErrCodeStreamClosed, "HEADERS for stream %d, which is closed", f.StreamID)
	}
	c.newest = f.StreamID
	if err := c.admit(); err != nil {
		return err
	}
	r, err := parseRequest(f.Fields)
	if err != nil {
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol, Cause: err}
	}
	if f.Truncated {
		r.refuse(http.StatusRequestHeaderFieldsTooLarge, codes.ResourceExhausted, "header fields of more than %d bytes", maxHeaderList)
	}
	if r.length > 0 && f.StreamEnded() {
		return http2.StreamError{StreamID: f.StreamID, Code: http2.ErrCodeProtocol, Cause: errors.New("content-length without DATA")}
	}
	return c.open(f.StreamID, r, f.StreamEnded())
}

// trailers processes a second header block. gRPC clients send none, but HTTP/2 allows it at the end of a stream.
func (s *stream) trailers(f *http2.MetaHeadersFrame) error {
	if s.remote {
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeStreamClosed}
	}
	if !f.StreamEnded() || len(f.PseudoFields()) > 0 {
		return http2.StreamError{StreamID: s.id, Code: http2.ErrCodeProtocol, Cause: errors.New("trailers must end the stream and have no pseudo fields")}
	}
	return s.remoteEnd()
}
