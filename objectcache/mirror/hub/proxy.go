// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/kubeflow/datacache/objectcache/mirror/content"
)

// notPassedOn are the header fields of clients that are not sent to the hub: those of one connection (RFC 9110, section 7.6.1),
// credentials, and Accept-Encoding, since bodies are rewritten.
var notPassedOn = []string{
	"Connection", "Keep-Alive", "Proxy-Authenticate", "Proxy-Authorization", "Te", "Trailer", "Transfer-Encoding", "Upgrade",
	"Authorization", "Cookie", "Accept-Encoding", "Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto",
}

// proxy passes the request to the hub, with the client's rights there, and the hub's answer back. Nothing is kept.
func (c *call) proxy() error {
	if c.from.IsHop() {
		http.Error(c.out, "only documents and blocks are for other object caches", http.StatusForbidden)
		return nil
	}
	body := io.Reader(c.Body)
	switch {
	case c.body != "": // it was read before
		body = strings.NewReader(c.body)
	case c.ContentLength == 0:
		body = nil
	}
	out, err := c.request(c.Context(), c.Method, strings.TrimPrefix(c.from.Target, Prefix), body)
	if err != nil {
		return err
	}
	out.ContentLength = c.ContentLength
	for name, values := range c.Header {
		if !slices.Contains(notPassedOn, name) && !strings.HasPrefix(name, "Datacache-") {
			out.Header[name] = values
		}
	}
	response, err := c.hub.o.Upstream.Do(out)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // opened for reading: closing can't lose data
	header := c.out.Header()
	keepXet := isLarge(response.Header.Get("X-Linked-Size"))
	c.copyHeader(response.Header, keepXet)
	for _, name := range []string{"Accept-Ranges", "Content-Range", "Www-Authenticate"} {
		header[name] = response.Header[name]
	}
	isRewritten := strings.HasPrefix(response.Header.Get("Content-Type"), "application/json")
	if response.ContentLength >= 0 && (!isRewritten || c.Method == http.MethodHead) {
		header.Set("Content-Length", strconv.FormatInt(response.ContentLength, 10))
	}
	c.out.WriteHeader(response.StatusCode)
	if err := c.copyBody(response.Header, response.Body); err != nil {
		return content.ErrCut
	}
	return nil
}
