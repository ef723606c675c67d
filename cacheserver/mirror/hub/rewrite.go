// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
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

// copyHeader copies the fields that clients may see. URLs of the hub become URLs of the mirror, base. Fields that lead to Xet are left
// out, unless keepXet.
func (h *Hub) copyHeader(to, from http.Header, base string, keepXet bool) {
	for _, name := range passedBack {
		for _, value := range from[name] {
			value = strings.ReplaceAll(value, h.cfg().Upstream, base)
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

// rewriteBody returns a JSON body with URLs of the mirror in place of those of the hub and without the Xet hashes of files that
// clients can download otherwise. Other bodies are returned as they are.
func (h *Hub) rewriteBody(header http.Header, body []byte, base string) []byte {
	if !strings.HasPrefix(header.Get("Content-Type"), "application/json") {
		return body
	}
	body = bytes.ReplaceAll(body, []byte(h.cfg().Upstream), []byte(base))
	if !bytes.Contains(body, []byte(`"xetHash"`)) {
		return body
	}
	decoder := json.NewDecoder(bytes.NewReader(body))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return body
	}
	h.stripXet(value)
	stripped, err := json.Marshal(value)
	if err != nil {
		return body
	}
	return stripped
}

// stripXet removes the fields xetHash from all objects of a JSON value.
func (h *Hub) stripXet(value any) {
	switch v := value.(type) {
	case []any:
		for _, each := range v {
			h.stripXet(each)
		}
	case map[string]any:
		if _, has := v["xetHash"]; has {
			if size, ok := v["size"].(json.Number); ok && isLarge(size.String()) {
				h.metrics.Large(Kind)
			} else {
				delete(v, "xetHash")
			}
		}
		for _, each := range v {
			h.stripXet(each)
		}
	}
}

// isLarge reports whether a size in decimal digits is one that clients only read from Xet.
func isLarge(size string) bool {
	n, err := strconv.ParseInt(size, 10, 64)
	return err == nil && n > largest
}
