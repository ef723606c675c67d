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
)

// newClient makes the HTTP client of all remote schemes. It keeps as many
// connections to a host as requests may be open, and speaks HTTP/1.1 only: over
// HTTP/2 all ranges would share one connection and its flow control.
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
		MaxConnsPerHost:       cfg.Concurrency, // wait for the one just left, dial no other
		DisableCompression:    true,            // ranges are of the bytes as stored
		ReadBufferSize:        64 << 10,
		Protocols:             &protocols,
	}
	client := &http.Client{
		Transport: counted{transport, stats},
		// A redirect is an answer to look at (S3: the bucket's region), not to
		// follow with credentials.
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

// counted is a transport that counts requests.
type counted struct {
	*http.Transport
	stats *counters
}

func (c counted) RoundTrip(req *http.Request) (*http.Response, error) {
	c.stats.requests.Add(1)
	return c.Transport.RoundTrip(req)
}
