// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"cmp"
	"context"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/oauth2"
	"golang.org/x/oauth2/google"
)

const (
	gcsEndpoint = "https://storage.googleapis.com"
	gcsScope    = "https://www.googleapis.com/auth/devstorage.read_only"
)

// gcsBucket reads a bucket through Google Cloud Storage's XML API, which is a GET with a Range and a bearer token; the SDK uses the
// same API for reads.
type gcsBucket struct {
	client  *http.Client
	base    string // URL of the bucket
	tokens  oauth2.TokenSource
	project string
}

// newGCSBucket makes the client of a bucket. It reads the credentials file if cfg names one; the default credentials are determined
// by the first request.
func newGCSBucket(ctx context.Context, cfg GCS, client *http.Client, name string) (*gcsBucket, error) {
	endpoint, err := url.Parse(cmp.Or(cfg.Endpoint, gcsEndpoint))
	if err != nil || endpoint.Host == "" {
		return nil, fmt.Errorf("GCS endpoint %q: give a URL such as http://host:port", cfg.Endpoint)
	}
	b := &gcsBucket{
		client:  client,
		base:    endpoint.Scheme + "://" + endpoint.Host + "/" + url.PathEscape(name) + "/",
		project: cfg.UserProject,
	}
	key := []byte(cfg.CredentialsJSON)
	if len(key) == 0 && cfg.CredentialsFile != "" {
		if key, err = os.ReadFile(cfg.CredentialsFile); err != nil {
			return nil, &credentialsError{fmt.Errorf("GCS credentials file: %w", err)}
		}
	}
	lasting := context.WithoutCancel(ctx) // tokens are renewed for as long as the Store exists
	switch {
	case cfg.Anonymous:
	case cfg.Token != "":
		b.tokens = oauth2.StaticTokenSource(&oauth2.Token{AccessToken: cfg.Token})
	case len(key) > 0:
		b.tokens, err = gcsKey(lasting, key)
	default:
		b.tokens = &gcsDefault{ctx: lasting}
	}
	return b, err
}

// gcsKey parses a Google credentials file; types that run a command are rejected.
func gcsKey(ctx context.Context, key []byte) (oauth2.TokenSource, error) {
	var kind struct {
		Type google.CredentialsType `json:"type"`
	}
	if err := json.Unmarshal(key, &kind); err != nil {
		return nil, &credentialsError{fmt.Errorf("GCS credentials are not JSON: %w", err)}
	}
	c, err := google.CredentialsFromJSONWithType(ctx, key, kind.Type, gcsScope)
	if err != nil {
		return nil, &credentialsError{fmt.Errorf("GCS credentials of type %q: %w", kind.Type, err)}
	}
	return c.TokenSource, nil
}

// gcsDefault determines the default credentials when the first token is requested, since that may involve the machine's metadata
// server.
type gcsDefault struct {
	ctx context.Context // context of the token requests; oauth2.TokenSource takes none

	mu     sync.Mutex
	source oauth2.TokenSource
}

func (d *gcsDefault) Token() (*oauth2.Token, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.source == nil {
		c, err := google.FindDefaultCredentials(d.ctx, gcsScope)
		if err != nil {
			return nil, err
		}
		d.source = c.TokenSource
	}
	return d.source.Token()
}

func (b *gcsBucket) get(ctx context.Context, key string, want span, tag string) (answer, error) {
	resp, err := b.send(ctx, b.base+escapeKey(key), func(h http.Header) {
		// Ask for the stored bytes: otherwise an object with Content-Encoding gzip is decompressed in transit and the Range ignored.
		h.Set("Accept-Encoding", "gzip")
		setUnlessEmpty(h, "Range", want.header())
		setUnlessEmpty(h, "If-Match", tag)
	})
	if err != nil {
		return answer{}, err
	}
	a := newAnswer(resp.Body, resp.Header.Get("Content-Range"), resp.ContentLength, resp.Header.Get("ETag"))
	a.modified, _ = http.ParseTime(resp.Header.Get("Last-Modified")) // only for Stat; zero if unknown
	return a, nil
}

func (b *gcsBucket) list(ctx context.Context, prefix, token string) (page, error) {
	query := url.Values{"list-type": {"2"}, "prefix": {prefix}}
	if token != "" {
		query.Set("continuation-token", token)
	}
	resp, err := b.send(ctx, b.base+"?"+query.Encode(), func(http.Header) {})
	if err != nil {
		return page{}, err
	}
	defer resp.Body.Close() // the body was read to its end or is abandoned
	var found struct {
		Contents []struct {
			Key          string
			Size         int64
			ETag         string
			LastModified time.Time
		}
		NextContinuationToken string
	}
	if err := xml.NewDecoder(io.LimitReader(resp.Body, pageLimit)).Decode(&found); err != nil {
		return page{}, fmt.Errorf("the list of objects: %w", err)
	}
	p := page{next: found.NextContinuationToken, entries: make([]listed, len(found.Contents))}
	for i, o := range found.Contents {
		p.entries[i] = listed{key: o.Key, size: o.Size, tag: o.ETag, modified: o.LastModified}
	}
	return p, nil
}

// pageLimit bounds the bytes of a page of a listing: 1000 keys of at most 1024 bytes, escaped, with what is said of them.
const pageLimit = 16 << 20

// send sends a GET with the headers that set sets. The caller closes the body.
func (b *gcsBucket) send(ctx context.Context, address string, set func(http.Header)) (*http.Response, error) {
	return b.request(ctx, http.MethodGet, address, nil, set)
}

// request sends a request; data is nil or its body. The caller closes the answer's body.
func (b *gcsBucket) request(ctx context.Context, method, address string, data *body, set func(http.Header)) (*http.Response, error) {
	var from io.Reader
	if data != nil {
		from = data
	}
	req, err := http.NewRequestWithContext(ctx, method, address, from)
	if err != nil {
		return nil, fmt.Errorf("GCS request: %w", err)
	}
	if data != nil {
		req.ContentLength = data.Size()
	}
	set(req.Header)
	setUnlessEmpty(req.Header, "X-Goog-User-Project", b.project)
	if b.tokens != nil {
		token, err := b.tokens.Token()
		if err != nil {
			return nil, &credentialsError{err}
		}
		token.SetAuthHeader(req)
	}
	resp, err := b.client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusPartialContent {
		return nil, xmlRefusal(resp)
	}
	return resp, nil
}

// xmlRefusal parses the XML error of S3 and compatible stores, and closes the response.
func xmlRefusal(resp *http.Response) error {
	defer resp.Body.Close() // the text of an error, not data
	r := &refusal{status: resp.StatusCode}
	var text struct {
		Code    string
		Message string
		Details string
	}
	if xml.NewDecoder(io.LimitReader(resp.Body, 16<<10)).Decode(&text) == nil {
		r.code, r.message = text.Code, strings.TrimSpace(text.Message+" "+text.Details)
	}
	return r
}

// escapeKey escapes an object's key for the path of a URL, except for its slashes.
func escapeKey(key string) string {
	parts := strings.Split(key, "/")
	for i, p := range parts {
		parts[i] = url.PathEscape(p)
	}
	return strings.Join(parts, "/")
}

func setUnlessEmpty(h http.Header, name, value string) {
	if value != "" {
		h.Set(name, value)
	}
}
