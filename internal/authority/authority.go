// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package authority makes the CA of one cache, and the certificates of its servers.
package authority

import (
	"bytes"
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
	// life is how long a CA's certificate is valid.
	life = 20 * 365 * 24 * time.Hour
	// leafLife is how long a server's certificate is valid, and leafRenewed when the next one is made.
	leafLife, leafRenewed = 7 * 24 * time.Hour, 24 * time.Hour
	// skew is how far in the past the validity of a certificate begins, for clients whose clock is behind.
	skew = time.Hour
)

// New makes a CA: its certificate, and its private key, both as PEM. name is for people.
func New(name string, now time.Time) (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make the authority's key: %w", err)
	}
	serial, err := newSerial()
	if err != nil {
		return nil, nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{Organization: []string{"datacache"}, CommonName: name},
		NotBefore: now.Add(-skew), NotAfter: now.Add(life),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}
	signed, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		return nil, nil, fmt.Errorf("make the authority's certificate: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		return nil, nil, fmt.Errorf("write the authority's key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: signed}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// Join returns the contents of the file that servers read: the certificate and the key that New returned.
func Join(certificate, key []byte) []byte { return bytes.Join([][]byte{certificate, key}, nil) }

func newSerial() (*big.Int, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("make a serial number: %w", err)
	}
	return serial, nil
}

// Authority is a CA of one cache, from which a server makes its certificate in memory. Parse returns one; it is safe for concurrent use.
type Authority struct {
	certificate *x509.Certificate
	key         crypto.Signer

	mu    sync.Mutex
	leaf  *tls.Certificate // nil: none was made
	renew time.Time
}

// Parse parses PEM of a CA's certificate and of its private key, in any order.
func Parse(text []byte) (*Authority, error) {
	var a Authority
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

// PEM is the CA's certificate.
func (a *Authority) PEM() string {
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.certificate.Raw}))
}

// Pool has the CA's certificate alone.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.certificate)
	return pool
}

// Server returns a certificate for the names, which are host names or addresses: the last one that was made, or a new one when that is a
// day old.
func (a *Authority) Server(names []string, now time.Time) (*tls.Certificate, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.leaf != nil && now.Before(a.renew) {
		return a.leaf, nil
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	serial, err := newSerial()
	if err != nil {
		return nil, err
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: ServerName}, NotBefore: now.Add(-skew), NotAfter: now.Add(leafLife),
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

// Names are the names of a server's certificate: ServerName, those of loopback, the host's and those given.
func Names(given []string) []string {
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
