// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"time"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"

	"github.com/kubeflow/datacache/internal/authority"
	"github.com/kubeflow/datacache/internal/handshake"
	"github.com/kubeflow/datacache/internal/reload"
)

// lookEvery is the minimum time between two checks whether the files of a certificate have changed.
const lookEvery = 2 * time.Second

// server is the server's TLS configuration; nil means plain text.
func (t TLS) server(log *slog.Logger) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.Plain {
		config.MinVersion = tls.VersionTLS13
	}
	switch {
	case t.Cert != "" && t.Authority != "":
		return nil, errors.New("tls: a certificate and a CA to make one from: give one of both")
	case t.Authority != "":
		ca, err := reload.Open(t.Authority, authority.Parse)
		if err != nil {
			return nil, fmt.Errorf("tls: load the cache's CA: %w", err)
		}
		names := authority.Names(t.Names)
		config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) {
			return ca.Fresh(lookEvery, log).Server(names, time.Now())
		}
	case t.Cert != "":
		pair, err := reload.OpenPair(t.Cert, t.Key)
		if err != nil {
			return nil, fmt.Errorf("tls: load certificate %s and key %s: %w", t.Cert, t.Key, err)
		}
		config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return pair.Fresh(lookEvery, log), nil }
	default:
		return nil, nil
	}
	return config, nil
}

// client is the TLS configuration for connections to other servers of the cache.
func (t TLS) client() (*tls.Config, error) {
	if t.Authority != "" {
		ca, err := reload.Open(t.Authority, authority.Parse)
		if err != nil {
			return nil, fmt.Errorf("tls: load the cache's CA: %w", err)
		}
		return reload.ClientTLS(authority.ServerName, func() (*x509.CertPool, error) {
			return ca.Fresh(0, slog.New(slog.DiscardHandler)).Pool(), nil
		}), nil
	}
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if t.CA == "" {
		return config, nil
	}
	pem, err := os.ReadFile(t.CA)
	if err != nil {
		return nil, fmt.Errorf("tls: read CA: %w", err)
	}
	config.RootCAs = x509.NewCertPool()
	if !config.RootCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("tls: %s holds no certificate in PEM form", t.CA)
	}
	return config, nil
}

// credentials are those of a grpc-go server with the configuration; nil: plain text.
func (t TLS) credentials(config *tls.Config, failed func(client net.Addr, err error)) credentials.TransportCredentials {
	if config == nil {
		return serverCredentials{insecure.NewCredentials(), true, failed}
	}
	return serverCredentials{credentials.NewTLS(config), t.Plain, failed}
}

// serverCredentials accept TLS and, if plain is set, plain text, as package h2 does. They admit the connection when that is done.
type serverCredentials struct {
	credentials.TransportCredentials
	plain  bool
	failed func(client net.Addr, err error)
}

// ServerHandshake implements credentials.TransportCredentials.
func (s serverCredentials) ServerHandshake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	conn, info, err := s.shake(raw)
	if c, ok := raw.(*boundedConn); ok && err == nil {
		err = c.admit()
	}
	return conn, info, err
}

func (s serverCredentials) shake(raw net.Conn) (net.Conn, credentials.AuthInfo, error) {
	from, secure, err := handshake.Peek(raw)
	if err != nil {
		return nil, nil, err
	}
	if s.plain && !secure {
		return from, nil, nil
	}
	conn, info, err := s.TransportCredentials.ServerHandshake(from)
	if err != nil {
		s.failed(raw.RemoteAddr(), err)
	}
	return conn, info, err
}

// Clone implements credentials.TransportCredentials.
func (s serverCredentials) Clone() credentials.TransportCredentials {
	return serverCredentials{s.TransportCredentials.Clone(), s.plain, s.failed}
}

// Secure reports whether a call came over TLS.
func Secure(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	return ok && p.AuthInfo != nil
}

// The URI schemes of Flight locations.
const (
	SchemeTLS   = "grpc+tls"
	SchemePlain = "grpc"
)

// Scheme is the URI scheme of the connection of a call.
func Scheme(ctx context.Context) string {
	if Secure(ctx) {
		return SchemeTLS
	}
	return SchemePlain
}

// Scheme is the URI scheme of the server's address.
func (t TLS) Scheme() string {
	if t.Enabled() {
		return SchemeTLS
	}
	return SchemePlain
}

// Named returns the configuration with the hosts of addresses, host:port each, among the names of the certificate that the server makes.
func (t TLS) Named(addresses ...string) TLS {
	t.Names = slices.Clone(t.Names)
	for _, address := range addresses {
		host, _, err := net.SplitHostPort(address)
		if ip := net.ParseIP(host); err == nil && (ip == nil || !ip.IsUnspecified()) {
			t.Names = append(t.Names, host)
		}
	}
	return t
}
