// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"bufio"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"testing"
)

// TestBazel sends the requests of a first and of a second build, as Bazel's HTTP cache client does (its HttpUploadHandler.java and
// HttpDownloadHandler.java): on one persistent connection, with entries under ac/ and cas/, expecting HTTP/1.1 responses with
// Content-Length. Bazel itself is in neither Debian nor a registry that the tests use.
func TestBazel(t *testing.T) {
	t.Parallel()
	p := start(t, options{})
	conn := p.connect()
	answers := bufio.NewReader(conn)
	exchange := func(method, entry, body string, want int) {
		t.Helper()
		length, sent := "", ""
		if method == http.MethodPut {
			length, sent = fmt.Sprintf("Content-Length: %d\r\n", len(body)), body
		}
		// Bazel's order of headers: its own, those of --remote_header, and User-Agent.
		_, err := fmt.Fprintf(conn, "%s /v1/objects/team/bazel/%s HTTP/1.1\r\nhost: cache\r\naccept: */*\r\n%sconnection: keep-alive\r\n"+
			"Authorization: Bearer %s\r\nuser-agent: bazel/release 8.0.0\r\n\r\n%s", method, entry, length, token, sent)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(answers, &http.Request{Method: method})
		if err != nil {
			t.Fatalf("%s %s: %v", method, entry, err)
		}
		defer response.Body.Close()
		text, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatalf("%s %s: %v", method, entry, err)
		}
		if response.StatusCode != want || want == http.StatusOK && string(text) != body {
			t.Errorf("%s %s: %s with %d bytes, want %d with the %d that were put", method, entry, response.Status, len(text), want, len(body))
		}
		if response.Proto != "HTTP/1.1" || response.ContentLength < 0 || response.Close {
			t.Errorf("%s %s: %s of length %d, connection to be closed: %t; Bazel wants HTTP/1.1, a length, and to keep it",
				method, entry, response.Proto, response.ContentLength, response.Close)
		}
	}
	outputs := []string{"", "an action's standard output", content("output", 0, 3<<20)}
	action := fmt.Sprintf("ac/%x", sha256.Sum256([]byte("the command and its inputs")))
	result := "an ActionResult: opaque to the cache"
	cas := func(output string) string { return fmt.Sprintf("cas/%x", sha256.Sum256([]byte(output))) }

	exchange(http.MethodGet, action, "", http.StatusNotFound)
	for _, output := range outputs {
		exchange(http.MethodPut, cas(output), output, http.StatusCreated)
	}
	exchange(http.MethodPut, action, result, http.StatusCreated)

	exchange(http.MethodGet, action, result, http.StatusOK)
	for _, output := range outputs {
		exchange(http.MethodGet, cas(output), output, http.StatusOK)
	}
}
