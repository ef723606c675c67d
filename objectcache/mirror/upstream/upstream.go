// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package upstream requests documents and byte ranges from the servers that a mirror stands in front of.
package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/kubeflow/datacache/internal/origin"
)

const (
	// silence is how long upstream may send nothing before a request fails.
	silence = 10 * time.Second
	// writeTimeout is how long upstream may take to answer a write.
	writeTimeout = 2 * time.Minute
	// maxMessage is how much of the body of a refusal is kept.
	maxMessage = 16 << 10
	// maxHeader is the maximum length of an answer's header.
	maxHeader = 128 << 10
	// window is how much of an answer may arrive, over HTTP/2, before it is read.
	window = 512 << 10
	// Memory is what a request takes at most until its answer is read: window, and the connection's buffers.
	Memory = window + maxHeader + 128<<10
	// maxRedirects is the maximum number of redirects that are followed.
	maxRedirects = 10
)

// Document is an answer of upstream.
type Document struct {
	Status  int
	Header  http.Header
	Fetched time.Time // when it was requested
	// Body is the body; Length is its number of bytes, -1 if that is not known. Who gets a Document closes it.
	Body   io.ReadCloser `json:"-"`
	Length int64         `json:"-"`
}

// Close closes the body.
func (d Document) Close() error {
	if d.Body == nil {
		return nil
	}
	return d.Body.Close()
}

// Refused is the error for an answer of upstream other than success.
type Refused struct {
	Answer  Document // without a body
	Message []byte   // the beginning of the body
}

// Error describes the answer.
func (r *Refused) Error() string {
	return fmt.Sprintf("upstream answered %d %s", r.Answer.Status, http.StatusText(r.Answer.Status))
}

// IsDown reports whether upstream failed, rather than refused: it could not be reached, answered 5xx, or had no capacity (408, 429).
func IsDown(err error) bool {
	var refused *Refused
	if !errors.As(err, &refused) {
		return err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, origin.ErrElsewhere)
	}
	switch status := refused.Answer.Status; status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests:
		return true
	default:
		return status >= http.StatusInternalServerError
	}
}

// NewRequest returns a request with credentials, the value of Authorization (empty: none).
func NewRequest(ctx context.Context, method, url, credentials string, body io.Reader) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		return nil, err
	}
	r.Header.Set("User-Agent", "datacache-mirror")
	if credentials != "" {
		r.Header.Set("Authorization", credentials)
	}
	return r, nil
}

// Client sends requests to upstream servers. Create it with New; it may be shared.
type Client struct {
	ranges    *http.Client // follows redirects to any host
	documents *http.Client // follows redirects only within a host
	patient   http.RoundTripper
	redirects redirects // of ranges
}

// New returns a Client.
func New() *Client {
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: 5 * time.Second}).DialContext,
		TLSHandshakeTimeout:   silence,
		ResponseHeaderTimeout: silence,
		MaxIdleConnsPerHost:   32,
		IdleConnTimeout:       time.Minute,
		DisableCompression:    true, // digests are of the bytes as they are
		ForceAttemptHTTP2:     true,
		ReadBufferSize:        64 << 10,

		MaxResponseHeaderBytes: maxHeader,
		HTTP2:                  &http.HTTP2Config{MaxReceiveBufferPerStream: window},
	}
	patient := transport.Clone()
	patient.ResponseHeaderTimeout = writeTimeout
	return &Client{
		patient:   patient,
		redirects: newRedirects(),
		ranges:    &http.Client{Transport: transport, CheckRedirect: withoutCredentials},
		documents: &http.Client{Transport: transport, CheckRedirect: withinHost},
	}
}

// withoutURL returns an error of package http without the URL, which may be a signed one.
func withoutURL(err error) error {
	var of *url.Error
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}

// withinHost stops at a redirect to another host, so that its answer is returned as it is.
func withinHost(r *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects || !origin.Same(via[0].URL, r.URL) {
		return http.ErrUseLastResponse
	}
	return nil
}

// withoutCredentials follows redirects to any host, but not from https to http. Another host gets no credentials, not even another port or a
// subdomain, to which package http would send them: signed URLs are refused with credentials.
func withoutCredentials(r *http.Request, via []*http.Request) error {
	if len(via) >= maxRedirects {
		return errors.New("too many redirects")
	}
	if from := via[len(via)-1].URL; origin.IsDowngrade(from, r.URL) {
		return fmt.Errorf("https://%s redirects to plain text at http://%s, %w", from.Host, r.URL.Host, origin.ErrElsewhere)
	}
	if !origin.Same(via[0].URL, r.URL) {
		r.Header.Del("Authorization")
	}
	return nil
}

// Do sends a request, which may be a write, and returns its response without following redirects. The caller closes the body.
func (c *Client) Do(r *http.Request) (*http.Response, error) { return c.patient.RoundTrip(r) }

// Document sends a request and returns the answer, following redirects within the host. Redirects keep the fields X-* of the answers
// on the way unless a later answer has its own. An answer other than 2xx and 3xx is an error of type *Refused. The request's context must
// live as long as the body is read.
func (c *Client) Document(r *http.Request) (Document, error) { return document(c.documents, r) }

// Head is Document for HEAD of a blob: it follows redirects to any host, like Range.
func (c *Client) Head(r *http.Request) (Document, error) { return document(c.ranges, r) }

func document(client *http.Client, r *http.Request) (Document, error) {
	began := time.Now()
	ctx, cancel := context.WithCancelCause(r.Context())
	response, err := client.Do(r.WithContext(ctx))
	if err != nil {
		cancel(nil)
		return Document{}, withoutURL(err)
	}
	body := NewStallReader(response.Body, cancel)
	d := Document{Status: response.StatusCode, Header: response.Header, Body: body, Length: response.ContentLength, Fetched: began}
	for earlier := response.Request.Response; earlier != nil; earlier = earlier.Request.Response {
		for name, values := range earlier.Header {
			if _, set := d.Header[name]; !set && strings.HasPrefix(name, "X-") {
				d.Header[name] = values
			}
		}
	}
	if d.Status < 200 || d.Status >= 400 {
		return Document{}, refused(d)
	}
	if r.Method == http.MethodHead {
		d.Length = 0
	}
	return d, nil
}

// refused returns the error for an answer, whose body it reads and closes.
func refused(d Document) *Refused {
	message, _ := io.ReadAll(io.LimitReader(d.Body, maxMessage)) // only for people
	_ = d.Body.Close()                                           // opened for reading: closing can't lose data
	d.Body, d.Length = nil, 0
	return &Refused{Answer: d, Message: message}
}

// Range requests length bytes from offset first of a body of size bytes. It follows redirects to any host, without credentials. The
// caller closes the reader, which returns at most length bytes; the request's context must live as long as the reader.
func (c *Client) Range(r *http.Request, first, length, size int64) (io.ReadCloser, error) {
	ctx, cancel := context.WithCancelCause(r.Context())
	out := r.Clone(ctx)
	out.Header.Set("Accept-Encoding", "identity")
	if length < size {
		out.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", first, first+length-1))
	}
	response, err := c.openRange(out)
	if err != nil {
		cancel(nil)
		return nil, withoutURL(err)
	}
	body := NewStallReader(response.Body, cancel)
	skip, err := offset(response, first, size)
	if err == nil && skip > 0 { // upstream ignores ranges
		_, err = io.CopyN(io.Discard, body, skip)
	}
	if err != nil {
		_ = body.Close() // opened for reading: closing can't lose data
		return nil, err
	}
	return &limited{Reader: io.LimitReader(body, length), Closer: body}, nil
}

// openRange sends a request for a range, to where an earlier one for the same body was redirected, or to upstream.
func (c *Client) openRange(r *http.Request) (*http.Response, error) {
	if to := c.redirects.find(r); to != nil {
		direct := r.Clone(r.Context())
		direct.URL, direct.Host = to, ""
		direct.Header.Del("Authorization")
		response, err := c.ranges.Do(direct)
		if err == nil && response.StatusCode < http.StatusBadRequest {
			return response, nil
		}
		c.redirects.forget(r) // its signature may have expired
		if err == nil {
			_ = response.Body.Close() // opened for reading: closing can't lose data
		}
	}
	response, err := c.ranges.Do(r)
	if err == nil && response.StatusCode < http.StatusBadRequest {
		c.redirects.remember(r, response.Request.URL)
	}
	return response, err
}

// offset checks the answer to a request for a range that starts at first and returns the number of bytes before it.
func offset(response *http.Response, first, size int64) (int64, error) {
	switch response.StatusCode {
	case http.StatusOK:
		if response.ContentLength >= 0 && response.ContentLength != size {
			return 0, fmt.Errorf("upstream has %d bytes, want %d", response.ContentLength, size)
		}
		return first, nil
	case http.StatusPartialContent:
		have := response.Header.Get("Content-Range")
		from, _, _ := strings.Cut(strings.TrimPrefix(have, "bytes "), "-")
		if n, err := strconv.ParseInt(from, 10, 64); err != nil || n != first {
			return 0, fmt.Errorf("upstream sent Content-Range %q, want one from %d", have, first)
		}
		return 0, nil
	default:
		return 0, refused(Document{Status: response.StatusCode, Header: response.Header, Body: response.Body, Fetched: time.Now()})
	}
}

type limited struct {
	io.Reader
	io.Closer
}

// errSilent cancels a request whose body stalls.
var errSilent = errors.New("upstream sent nothing for " + silence.String())

// StallReader is a body that cancels its request when nothing arrives for a while. Closing it cancels the request too.
type StallReader struct {
	body   io.ReadCloser
	timer  *time.Timer
	cancel context.CancelCauseFunc
}

// NewStallReader returns a StallReader of a body; cancel cancels the body's request.
func NewStallReader(body io.ReadCloser, cancel context.CancelCauseFunc) *StallReader {
	s := &StallReader{body: body, cancel: cancel}
	s.timer = time.AfterFunc(silence, func() { cancel(errSilent) })
	return s
}

// Read reads from the body.
func (s *StallReader) Read(p []byte) (int, error) {
	n, err := s.body.Read(p)
	s.timer.Reset(silence)
	return n, err
}

// Close closes the body.
func (s *StallReader) Close() error {
	s.timer.Stop()
	err := s.body.Close()
	s.cancel(nil)
	return err
}
