// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"os"
	"slices"
	"sync"
	"time"
)

// ServerName is a name that the certificates of all servers of a cache with a CA of its own have. The CA signs nothing else, so that it is
// enough to verify this name.
const ServerName = "datacache"

const (
	// leafLife is how long a server's certificate is valid, and leafRenewed when the next one is made.
	leafLife, leafRenewed = 7 * 24 * time.Hour, 24 * time.Hour
	// leafSkew is how long before it is made a certificate is valid, for clients whose clock is behind.
	leafSkew = time.Hour
)

// authority is a CA of one cache, from which a server makes its certificate in memory. It is safe for concurrent use.
type authority struct {
	certificate *x509.Certificate
	key         crypto.Signer

	mu    sync.Mutex
	leaf  *tls.Certificate // nil: none was made
	renew time.Time
}

// parseAuthority parses PEM of a CA's certificate and of its private key, in any order.
func parseAuthority(text []byte) (*authority, error) {
	var a authority
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		var err error
		switch block.Type {
		case "CERTIFICATE":
			if a.certificate == nil {
				a.certificate, err = x509.ParseCertificate(block.Bytes)
			}
		case "PRIVATE KEY":
			var key any
			key, err = x509.ParsePKCS8PrivateKey(block.Bytes)
			a.key, _ = key.(crypto.Signer)
		case "EC PRIVATE KEY":
			a.key, err = x509.ParseECPrivateKey(block.Bytes)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", block.Type, err)
		}
	}
	if a.certificate == nil || a.key == nil {
		return nil, errors.New("want PEM of a CA's certificate and of its private key")
	}
	if !a.certificate.IsCA {
		return nil, fmt.Errorf("the certificate %q is not one of a CA: want basicConstraints CA:TRUE", a.certificate.Subject.CommonName)
	}
	if public, ok := a.certificate.PublicKey.(interface{ Equal(crypto.PublicKey) bool }); !ok || !public.Equal(a.key.Public()) {
		return nil, errors.New("the private key is not that of the CA's certificate")
	}
	return &a, nil
}

// server returns a certificate for the names, which are host names or addresses: the last one that was made, or a new one when that is a
// day old.
func (a *authority) server(names []string, now time.Time) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.leaf != nil && now.Before(a.renew) {
		return a.leaf, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: ServerName}, NotBefore: now.Add(-leafSkew), NotAfter: now.Add(leafLife),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}, BasicConstraintsValid: true,
	}
	for _, name := range names {
		if ip := net.ParseIP(name); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, name)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.certificate, key.Public(), a.key)
	if err != nil {
		return nil, fmt.Errorf("tls: sign a certificate: %w", err)
	}
	a.leaf, a.renew = &tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, now.Add(leafRenewed)
	return a.leaf, nil
}

// leafNames are the names of a server's certificate, with those given.
func leafNames(given []string) []string {
	names := []string{ServerName, "localhost", "127.0.0.1", "::1"}
	if host, err := os.Hostname(); err == nil {
		names = append(names, host)
	}
	for _, name := range given {
		if name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
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
