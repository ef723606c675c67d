// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"time"

	"github.com/kubeflow/datacache/internal/origin"
)

// newClient makes the HTTP client for all remote schemes. It keeps as many idle connections to a host as there may be concurrent
// requests, and uses only HTTP/1.1: over HTTP/2 all ranges would share one connection and its flow control.
func newClient(cfg Config, stats *counters) (*http.Client, error) {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           cfg.Dial,
		TLSHandshakeTimeout:   10 * time.Second,
		ExpectContinueTimeout: time.Second,
		IdleConnTimeout:       90 * time.Second,
		MaxIdleConnsPerHost:   cfg.Concurrency,
		MaxConnsPerHost:       cfg.Concurrency, // wait for a connection to become free instead of dialing another
		DisableCompression:    true,            // ranges are those of the stored bytes
		ReadBufferSize:        64 << 10,
		Protocols:             &protocols,
	}
	client := &http.Client{
		Transport: counted{transport, stats},
		// A redirect is returned, since S3 names the bucket's region in it; following it would send the credentials elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	if cfg.CAFile == "" {
		return client, nil
	}
	pem, err := os.ReadFile(cfg.CAFile)
	if err != nil {
		return client, fmt.Errorf("CA file: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return client, fmt.Errorf("CA file %s holds no PEM certificate", cfg.CAFile)
	}
	transport.TLSClientConfig = &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12}
	return client, nil
}

// counted is an http.RoundTripper that counts requests.
type counted struct {
	*http.Transport
	stats *counters
}

func (c counted) RoundTrip(req *http.Request) (*http.Response, error) {
	c.stats.requests.Add(1)
	return bounded{c.Transport}.RoundTrip(req)
}

// bounded is an http.RoundTripper that ends answers after pageLimit bytes, except for ranges of objects: SDKs read lists, errors and tokens
// to their end.
type bounded struct{ http.RoundTripper }

func (b bounded) RoundTrip(req *http.Request) (*http.Response, error) {
	answer, err := b.RoundTripper.RoundTrip(req)
	if err == nil && answer.StatusCode != http.StatusPartialContent {
		answer.Body = http.MaxBytesReader(nil, answer.Body, pageLimit)
	}
	return answer, err
}

// newTokenClient makes the HTTP client for servers that issue tokens. It bounds their answers, in time too, since some of these requests have
// no context, and follows no redirect to another origin, since their bodies have credentials.
func newTokenClient(cfg Config) *http.Client {
	return &http.Client{Transport: origin.Transport{Base: bounded{http.DefaultTransport}}, Timeout: cfg.StallTimeout}
}
