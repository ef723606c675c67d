// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"bufio"
	"bytes"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const plainGet = "GET /v1/objects/open/x HTTP/1.1\r\nHost: cache\r\n"

func TestParseSimple(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		text string
		want simple
		rest string
	}{
		"plain":      {plainGet + "\r\n", simple{method: "GET", target: "/v1/objects/open/x", host: "cache"}, ""},
		"HEAD":       {"HEAD /v1/objects/open//%20 HTTP/1.1\r\nHost: cache\r\n\r\n", simple{method: "HEAD", target: "/v1/objects/open//%20", host: "cache"}, ""},
		"the next":   {plainGet + "\r\nGET", simple{method: "GET", target: "/v1/objects/open/x", host: "cache"}, "GET"},
		"keep-alive": {plainGet + "Connection: Keep-Alive\r\n\r\n", simple{method: "GET", target: "/v1/objects/open/x", host: "cache"}, ""},
		"fields": {
			plainGet + "authorization:\t Bearer t \r\nRANGE: bytes=0-1\r\nDatacache-Hop: 1\r\nAccept: */*\r\nAccept: text/html\r\n\r\n",
			simple{method: "GET", target: "/v1/objects/open/x", host: "cache", authorization: "Bearer t", byRange: "bytes=0-1", hop: "1"}, "",
		},
		"bytes past ASCII": {
			"GET /v1/objects/open/\xc3\xbcber HTTP/1.1\r\nHost: cache\r\nUser-Agent: \xff\r\n\r\n",
			simple{method: "GET", target: "/v1/objects/open/\xc3\xbcber", host: "cache"}, "",
		},
	}
	for name, test := range tests {
		got, size, ok := parseSimple([]byte(test.text))
		if !ok {
			t.Errorf("%s: not simple", name)
			continue
		}
		if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(simple{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if rest := test.text[size:]; rest != test.rest {
			t.Errorf("%s: leaves %q, want %q", name, rest, test.rest)
		}
		for cut := range size {
			if _, _, ok := parseSimple([]byte(test.text[:cut])); ok {
				t.Errorf("%s: %d of %d bytes are taken for a request", name, cut, size)
			}
		}
	}
}

// notSimple are requests that net/http must judge, whatever it makes of them.
var notSimple = map[string]string{
	"a write":                  "PUT /v1/objects/open/y HTTP/1.1\r\nHost: cache\r\nContent-Length: 0\r\n\r\n",
	"a small method":           "get /v1/objects/open/x HTTP/1.1\r\nHost: cache\r\n\r\n",
	"another path":             "GET /v1/things/open/x HTTP/1.1\r\nHost: cache\r\n\r\n",
	"as to a proxy":            "GET http://cache/v1/objects/open/x HTTP/1.1\r\nHost: cache\r\n\r\n",
	"an old protocol":          "GET /v1/objects/open/x HTTP/1.0\r\nHost: cache\r\n\r\n",
	"no protocol":              "GET /v1/objects/open/x\r\nHost: cache\r\n\r\n",
	"two spaces":               "GET  /v1/objects/open/x HTTP/1.1\r\nHost: cache\r\n\r\n",
	"a space in the key":       "GET /v1/objects/open/x y HTTP/1.1\r\nHost: cache\r\n\r\n",
	"a bad escape":             "GET /v1/objects/open/%zz HTTP/1.1\r\nHost: cache\r\n\r\n",
	"a NUL in the key":         "GET /v1/objects/open/\x00 HTTP/1.1\r\nHost: cache\r\n\r\n",
	"an empty line first":      "\r\n" + plainGet + "\r\n",
	"no host":                  "GET /v1/objects/open/x HTTP/1.1\r\nAccept: */*\r\n\r\n",
	"no fields":                "GET /v1/objects/open/x HTTP/1.1\r\n\r\n",
	"two hosts":                plainGet + "Host: other\r\n\r\n",
	"a bad host":               "GET /v1/objects/open/x HTTP/1.1\r\nHost: a b\r\n\r\n",
	"two tokens":               plainGet + "Authorization: Bearer a\r\nAuthorization: Bearer b\r\n\r\n",
	"an empty token":           plainGet + "Authorization:\r\nAuthorization: Bearer b\r\n\r\n",
	"two ranges":               plainGet + "Range: bytes=0-1\r\nRange: bytes=0-2\r\n\r\n",
	"two hops":                 plainGet + "Datacache-Hop: 1\r\nDatacache-Hop: 1\r\n\r\n",
	"a body":                   plainGet + "Content-Length: 4\r\n\r\nbody",
	"a body of no bytes":       plainGet + "Content-Length: 0\r\n\r\n",
	"chunks":                   plainGet + "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
	"the last one":             plainGet + "Connection: close\r\n\r\n",
	"options of a connection":  plainGet + "Connection: keep-alive, upgrade\r\n\r\n",
	"an upgrade":               plainGet + "Upgrade: h2c\r\n\r\n",
	"an expectation":           plainGet + "Expect: 100-continue\r\n\r\n",
	"trailers":                 plainGet + "Trailer: X\r\n\r\n",
	"a condition of the range": plainGet + "Range: bytes=0-1\r\nIf-Range: \"tag\"\r\n\r\n",
	"a folded field":           plainGet + "Accept: a\r\n b\r\n\r\n",
	"a line feed alone":        plainGet + "Accept: a\nContent-Length: 4\r\n\r\nbody",
	"line feeds alone":         "GET /v1/objects/open/x HTTP/1.1\nHost: cache\n\n" + plainGet + "\r\n",
	"a carriage return alone":  plainGet + "Accept: a\rb\r\n\r\n",
	"a NUL in a field":         plainGet + "Accept: a\x00\r\n\r\n",
	"space before the colon":   plainGet + "Content-Length : 4\r\n\r\nbody",
	"no name":                  plainGet + ": x\r\n\r\n",
	"no colon":                 plainGet + "Accept\r\n\r\n",
}

func TestNotSimple(t *testing.T) {
	t.Parallel()
	for name, text := range notSimple {
		if r, _, ok := parseSimple([]byte(text)); ok {
			t.Errorf("%s: taken for %+v", name, r)
		}
	}
}

// FuzzParseSimple holds parseSimple to net/http: what it takes is the same request there, of the same bytes, without a body,
// and leaves the connection open.
func FuzzParseSimple(f *testing.F) {
	for _, text := range notSimple {
		f.Add([]byte(text))
	}
	f.Add([]byte(plainGet + "\r\n" + plainGet))
	f.Add([]byte(plainGet + "Authorization: Bearer t\r\nRange: bytes=0-1\r\nDatacache-Hop: 1\r\nConnection: keep-alive\r\n\r\nrest"))
	f.Fuzz(func(t *testing.T, b []byte) {
		got, size, ok := parseSimple(b)
		if !ok {
			return
		}
		reader := bufio.NewReader(bytes.NewReader(b))
		r, err := http.ReadRequest(reader)
		if err != nil {
			t.Fatalf("net/http refuses it: %v", err)
		}
		want := simple{
			method: r.Method, target: r.RequestURI, host: r.Host,
			authorization: r.Header.Get("Authorization"), byRange: r.Header.Get("Range"), hop: r.Header.Get(hopHeader),
		}
		if diff := cmp.Diff(want, got, cmp.AllowUnexported(simple{})); diff != "" {
			t.Errorf("(-net/http +ours):\n%s", diff)
		}
		if r.Proto != "HTTP/1.1" || r.Body != http.NoBody || r.Close || r.Header.Get("Expect") != "" || r.Header.Get("If-Range") != "" {
			t.Errorf("not simple to net/http: %+v", r)
		}
		if rest, err := io.ReadAll(reader); err != nil || !bytes.Equal(rest, b[size:]) {
			t.Errorf("%q are left by net/http (%v), %q by us", rest, err, b[size:])
		}
		if strings.ContainsAny(got.target, " \r\n\x00") {
			t.Errorf("target %q", got.target)
		}
	})
}
