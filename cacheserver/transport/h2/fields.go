// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"encoding/base64"
	"strconv"
	"strings"

	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// headerFields returns the header fields of a response.
func headerFields(code int, contentType string, md metadata.MD) []hpack.HeaderField {
	return appendMetadata([]hpack.HeaderField{{Name: ":status", Value: strconv.Itoa(code)}, {Name: "content-type", Value: contentType}}, md)
}

// trailerFields returns the trailer fields of a response.
func trailerFields(st *status.Status, md metadata.MD) []hpack.HeaderField {
	fields := []hpack.HeaderField{{Name: "grpc-status", Value: strconv.Itoa(int(st.Code()))}}
	if m := st.Message(); m != "" {
		fields = append(fields, hpack.HeaderField{Name: "grpc-message", Value: percentEncode(m)})
	}
	if p := st.Proto(); len(p.GetDetails()) > 0 {
		// A status whose details can't be encoded is sent without them; code and message are sufficient.
		if encoded, err := proto.Marshal(p); err == nil {
			fields = append(fields, hpack.HeaderField{Name: "grpc-status-details-bin", Value: base64.RawStdEncoding.EncodeToString(encoded)})
		}
	}
	return appendMetadata(fields, md)
}

// appendMetadata appends the application's fields, without names reserved by gRPC.
func appendMetadata(fields []hpack.HeaderField, md metadata.MD) []hpack.HeaderField {
	for name, values := range md {
		name = strings.ToLower(name)
		if isReserved(name) {
			continue
		}
		for _, v := range values {
			if strings.HasSuffix(name, "-bin") {
				v = base64.RawStdEncoding.EncodeToString([]byte(v))
			}
			fields = append(fields, hpack.HeaderField{Name: name, Value: v})
		}
	}
	return fields
}

const upperHex = "0123456789ABCDEF"

// percentEncode encodes a status message for a header field: bytes that are not printable ASCII, and %, become %XX.
func percentEncode(message string) string {
	var b strings.Builder
	for i := range len(message) {
		if c := message[i]; c >= ' ' && c <= '~' && c != '%' {
			b.WriteByte(c)
		} else {
			b.WriteByte('%')
			b.WriteByte(upperHex[c>>4])
			b.WriteByte(upperHex[c&15])
		}
	}
	return b.String()
}
