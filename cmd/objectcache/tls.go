// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"

	"github.com/spf13/pflag"

	"github.com/kubeflow/datacache/internal/command"
	"github.com/kubeflow/datacache/internal/reload"
	"github.com/kubeflow/datacache/objectcache/serve"
)

// tlsFlags configure TLS on the port for objects.
type tlsFlags struct{ cert, key, ca, name string }

func (f *tlsFlags) register(flags *pflag.FlagSet, env command.Env) {
	flags.StringVar(&f.cert, "tls-cert", env("TLS_CERT"), "PEM file of the certificate for objects; read again when it changes; empty: no TLS (env TLS_CERT)")
	flags.StringVar(&f.key, "tls-key", env("TLS_KEY"), "PEM file of its key (env TLS_KEY)")
	flags.StringVar(&f.ca, "tls-ca", env("TLS_CA"), "PEM file of the authorities that other object caches' certificates are of; read again when it changes (env TLS_CA)")
	flags.StringVar(&f.name, "tls-name", env("TLS_NAME"), "DNS name that other object caches' certificates have (default: SERVICE.NAMESPACE.svc; env TLS_NAME)")
}

// check returns an error if the flags are inconsistent.
func (f *tlsFlags) check() error {
	if f.cert == "" {
		if f.key != "" || f.ca != "" || f.name != "" {
			return errors.New("--tls-cert: missing, --tls-key, --tls-ca and --tls-name want it")
		}
		return nil
	}
	for flag, value := range map[string]string{"--tls-key": f.key, "--tls-ca": f.ca, "--tls-name": f.name} {
		if value == "" {
			return fmt.Errorf("%s: missing, --tls-cert wants it", flag)
		}
	}
	return nil
}

// scheme is the scheme of objects' URLs.
func (f *tlsFlags) scheme() string {
	if f.cert == "" {
		return "http"
	}
	return "https"
}

// load returns the server's TLS configuration and the file of authorities, which the caller watches; both are nil without TLS.
func (f *tlsFlags) load(log *slog.Logger) (*serve.TLS, *reload.File[authorities], error) {
	if f.cert == "" {
		return nil, nil, nil
	}
	pair, err := reload.OpenPair(f.cert, f.key)
	if err != nil {
		return nil, nil, fmt.Errorf("--tls-cert: %w", err)
	}
	roots, err := reload.Open(f.ca, parseAuthorities)
	if err != nil {
		return nil, nil, fmt.Errorf("--tls-ca: %w", err)
	}
	return &serve.TLS{
		Certificate: func() *tls.Certificate { return pair.Fresh(lookEvery, log) },
		Roots:       func() *x509.CertPool { return roots.Get().pool }, ServerName: f.name,
	}, roots, nil
}

// authorities are certificates of authorities.
type authorities struct {
	pem  string
	pool *x509.CertPool
}

func parseAuthorities(text []byte) (authorities, error) {
	a := authorities{pem: string(text), pool: x509.NewCertPool()}
	if !a.pool.AppendCertsFromPEM(text) {
		return authorities{}, errors.New("no certificate in PEM")
	}
	return a, nil
}
