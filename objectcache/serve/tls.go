// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"crypto/tls"
	"crypto/x509"
	"net"
	"net/http"

	"github.com/kubeflow/datacache/internal/handshake"
	"github.com/kubeflow/datacache/internal/reload"
)

// TLS configures TLS on the ports for objects and for mirrors, for clients and between object caches. Its functions return the current values.
type TLS struct {
	Certificate func() (*tls.Certificate, error)
	Roots       func() (*x509.CertPool, error) // to verify other object caches' certificates
	ServerName  string                         // the name in other object caches' certificates
	// Plain says that requests in plain text are answered too. They are refused otherwise, with a sentence that says so.
	Plain bool
}

// listener wraps a listener of connections; t may be nil.
func (t *TLS) listener(on net.Listener, l limits, failures *handshake.Failures) net.Listener {
	if t == nil {
		return on
	}
	return handshake.Listen(on, &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"http/1.1"},
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return t.Certificate() },
	}, l.header, failures)
}

// handler refuses requests in plain text, unless they are allowed; t may be nil.
func (t *TLS) handler(h http.Handler) http.Handler {
	if t == nil || t.Plain {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil {
			w.Header().Set("Connection", "close") // as the request's body is not read
			http.Error(w, "this object cache takes TLS only: use https://, with the certificate of its authority "+
				"(on Kubernetes ca.crt of the ConfigMap datacache-object-cache-ca), or start it with --plain-text", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// client returns the configuration of connections to other object caches; nil for a nil t.
func (t *TLS) client() *tls.Config {
	if t == nil {
		return nil
	}
	return reload.ClientTLS(t.ServerName, t.Roots)
}
