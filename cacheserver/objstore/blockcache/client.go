// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package blockcache

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/kubeflow/datacache/internal/reload"
)

var (
	// errMiss says that the object cache does not have a block.
	errMiss = errors.New("not in the object cache")
	// errAway says that the node responsible for a block does not respond or does not accept the block; other nodes may.
	errAway = errors.New("its node is away or full")
)

// client is the HTTP client of an object cache (docs/object-cache.md). It is safe for concurrent use.
type client struct {
	cfg    Config
	prefix string // of the paths of requests
	http   *http.Client
}

func newClient(cfg Config) *client {
	return &client{
		cfg: cfg, prefix: "/v1/objects/" + cfg.Bucket + "/",
		http: &http.Client{Transport: &http.Transport{ // no proxy: the object cache is in the cluster
			DialContext:         (&net.Dialer{Timeout: time.Second}).DialContext,
			TLSClientConfig:     verifyBy(cfg),
			TLSHandshakeTimeout: cfg.Timeout,
			MaxIdleConnsPerHost: 32,
			IdleConnTimeout:     time.Minute,
			DisableCompression:  true,
			ReadBufferSize:      64 << 10,
			WriteBufferSize:     64 << 10,
		}, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}, // an object cache never redirects
	}
}

// verifyBy returns a TLS configuration that verifies the object cache by the authorities in a file, which is read for each connection since it
// may be replaced; nil without a file.
func verifyBy(cfg Config) *tls.Config {
	u, err := url.Parse(cfg.URL)
	if cfg.CAFile == "" || err != nil { // Check refuses such a URL
		return nil
	}
	return reload.ClientTLS(u.Hostname(), func() (*x509.CertPool, error) {
		text, err := os.ReadFile(cfg.CAFile)
		if err != nil {
			return nil, fmt.Errorf("the object cache's authorities: %w", err)
		}
		roots := x509.NewCertPool()
		if !roots.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("the object cache's authorities: %s: no certificate in PEM", cfg.CAFile)
		}
		return roots, nil
	})
}

// get fills buf with a part of a block. errMiss means that the block is not there, errPage that it is damaged, errAway that its node
// does not respond; other errors concern the whole object cache.
func (c *client) get(ctx context.Context, name string, form pages, part extent, buf []byte) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	block, stored := form.cover(part)
	request, err := c.request(ctx, http.MethodGet, name, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", stored.offset, stored.end()-1))
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // the body was read to its end or is abandoned
	if response.StatusCode == http.StatusNotFound && response.Header.Get("Retry-After") != "" {
		return errAway
	}
	if response.StatusCode == http.StatusNotFound {
		_, _ = io.CopyN(io.Discard, response.Body, 1<<10) // so that the connection is used again
		return errMiss
	}
	if response.StatusCode == http.StatusRequestedRangeNotSatisfiable {
		return fmt.Errorf("block of another length: %w", errPage)
	}
	if response.StatusCode != http.StatusPartialContent {
		return fmt.Errorf("object cache: GET: %s", response.Status)
	}
	if want := fmt.Sprintf("bytes %d-%d/%d", stored.offset, stored.end()-1, form.size(form.length)); response.Header.Get("Content-Range") != want {
		return fmt.Errorf("range %q, want %q: %w", response.Header.Get("Content-Range"), want, errPage)
	}
	return form.read(response.Body, block, part, buf)
}

// put stores a block in the object cache. errAway means that its node refused it; other errors are as for get.
func (c *client) put(ctx context.Context, name string, form pages, block []byte) error {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
	defer cancel()
	request, err := c.request(ctx, http.MethodPut, name, form.encode(block))
	if err != nil {
		return err
	}
	request.ContentLength = form.size(form.length)
	response, err := c.http.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = response.Body.Close() }() // the body holds a line at most
	if response.StatusCode != http.StatusCreated {
		return fmt.Errorf("object cache: PUT: %s: %w", response.Status, errAway)
	}
	return nil
}

// request makes a request whose token is read from its file each time, since the kubelet renews it before it expires.
func (c *client) request(ctx context.Context, method, name string, body io.Reader) (*http.Request, error) {
	request, err := http.NewRequestWithContext(ctx, method, c.cfg.URL, body)
	if err != nil {
		return nil, err
	}
	token, err := os.ReadFile(c.cfg.TokenFile)
	if err != nil {
		return nil, fmt.Errorf("the object cache's token: %w", err)
	}
	request.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(token)))
	request.URL = &url.URL{Scheme: request.URL.Scheme, Host: request.URL.Host, Opaque: c.prefix + escape(name)}
	return request, nil
}

// escape percent-encodes a block's name for use in a request's path.
func escape(name string) string {
	const plain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~/:=@"
	var b strings.Builder
	for i := range len(name) {
		if c := name[i]; strings.IndexByte(plain, c) >= 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
