// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"crypto/tls"
	"crypto/x509"
	"net"

	"github.com/kubeflow/datacache/internal/reload"
)

// TLS configures TLS on the port for objects, for clients and between object caches. Its functions return the current values.
type TLS struct {
	Certificate func() *tls.Certificate
	Roots       func() *x509.CertPool // to verify other object caches' certificates
	ServerName  string                // the name in other object caches' certificates
}

// listener wraps a listener of connections; t may be nil.
func (t *TLS) listener(on net.Listener) net.Listener {
	if t == nil {
		return on
	}
	return tls.NewListener(on, &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return t.Certificate(), nil },
	})
}

// client returns the configuration of connections to other object caches; nil for a nil t.
func (t *TLS) client() *tls.Config {
	if t == nil {
		return nil
	}
	return reload.ClientTLS(t.ServerName, func() (*x509.CertPool, error) { return t.Roots(), nil })
}
