// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"bufio"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"

	"github.com/kubeflow/datacache/objectcache/pace"
)

// largest is the size from which clients refuse plain downloads and use Xet, in bytes (huggingface_hub's MAX_HTTP_DOWNLOAD_SIZE).
const largest = 50_000_000_000

// passedBack are the header fields of the hub that clients get with documents and files.
var passedBack = []string{
	"Content-Type", "Content-Disposition", "Etag", "Last-Modified", "Link", "Location", "Retry-After", "Ratelimit", "Ratelimit-Policy",
	"X-Error-Code", "X-Error-Message", "X-Linked-Etag", "X-Linked-Size", "X-Repo-Commit", "X-Request-Id", "X-Total-Count",
}

// xetHash is the field of headers that makes clients read a file from Xet's servers.
const xetHash = "X-Xet-Hash"

// copyHeader copies the fields that clients may see. URLs of the hub become URLs of the mirror. Fields that lead to Xet are left
// out, unless keepXet.
func (c *call) copyHeader(from http.Header, keepXet bool) {
	to := c.out.Header()
	for _, name := range passedBack {
		for _, value := range from[name] {
			value = strings.ReplaceAll(value, c.cfg.Upstream, c.base())
			if name == "Link" && !keepXet {
				value = withoutXet(value)
			}
			if value != "" {
				to.Add(name, value)
			}
		}
	}
	if keepXet {
		to[xetHash] = from[xetHash]
	}
}

// withoutXet removes the links to Xet from a Link header (RFC 8288, section 3).
func withoutXet(links string) string {
	var kept []string
	for link := range strings.SplitSeq(links, ",") {
		if !strings.Contains(link, `rel="xet-`) && !strings.Contains(link, "rel=xet-") {
			kept = append(kept, strings.TrimSpace(link))
		}
	}
	return strings.Join(kept, ", ")
}

// copyBody copies a body to a client. In JSON, URLs of the mirror take the place of the hub's, and the Xet hashes of files that clients can
// download otherwise are left out.
func (c *call) copyBody(header http.Header, body io.Reader) error {
	buf, err := c.hub.o.Cache.Buffer(c.Context())
	if err != nil {
		return err
	}
	defer buf.Free()
	out := pace.Default.Writer(c.out)
	if !strings.HasPrefix(header.Get("Content-Type"), "application/json") {
		_, err := io.CopyBuffer(struct{ io.Writer }{out}, body, buf.Bytes) // hides ReadFrom, which would ignore buf
		return err
	}
	replaced := &replacer{to: bufio.NewWriterSize(out, rewriteBuffer), old: []byte(c.cfg.Upstream), new: []byte(c.base())}
	stripped := &stripper{to: bufio.NewWriterSize(replaced, rewriteBuffer), large: func() { c.hub.o.Metrics.Large(Kind) }}
	if _, err := io.CopyBuffer(stripped, body, buf.Bytes); err != nil {
		return err
	}
	return errors.Join(stripped.Close(), replaced.Close())
}

// rewriteBuffer is the length of the two buffers of a body that is rewritten.
const rewriteBuffer = 32 << 10

// isLarge reports whether a size in decimal digits is one that clients only read from Xet.
func isLarge(size string) bool {
	n, err := strconv.ParseInt(size, 10, 64)
	return err == nil && n > largest
}
