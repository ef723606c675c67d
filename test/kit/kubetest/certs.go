// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// authority is the CA that signs all certificates of a cluster, of servers and users.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte // the certificate
}

func newAuthority() (*authority, error) {
	a := &authority{}
	template := &x509.Certificate{
		Subject:               pkix.Name{CommonName: "kubetest"},
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	key, certPEM, _, err := issue(template, nil)
	if err != nil {
		return nil, err
	}
	block, _ := pem.Decode(certPEM)
	a.cert, err = x509.ParseCertificate(block.Bytes)
	a.key, a.pem = key, certPEM
	return a, err
}

// serving issues the certificate that all servers of the cluster share, for the cluster's address and every service name used with
// it.
func (a *authority) serving(addresses ...string) (cert, key []byte, err error) {
	template := &x509.Certificate{
		Subject:     pkix.Name{CommonName: "kubetest-serving"},
		DNSNames:    []string{"localhost", "kubernetes.default.svc"},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	for _, address := range addresses {
		template.IPAddresses = append(template.IPAddresses, net.ParseIP(address))
	}
	_, cert, key, err = issue(template, a)
	return cert, key, err
}

// user issues the certificate with which a user of the groups authenticates to the API server.
func (a *authority) user(name string, groups []string) (cert, key []byte, err error) {
	_, cert, key, err = issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: name, Organization: groups},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}, a)
	return cert, key, err
}

// issue adds a key, a serial number and a validity of one day to the template and signs it; without a signer it is self-signed.
func issue(template *x509.Certificate, by *authority) (private *ecdsa.PrivateKey, cert, key []byte, err error) {
	private, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, nil, err
	}
	template.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 100))
	if err != nil {
		return nil, nil, nil, err
	}
	template.NotBefore = time.Now().Add(-time.Hour)
	template.NotAfter = time.Now().Add(24 * time.Hour)
	parent, signer := template, private
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, private.Public(), signer)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("signing a certificate for %q: %w", template.Subject.CommonName, err)
	}
	encoded, err := x509.MarshalECPrivateKey(private)
	cert = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	key = pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: encoded})
	return private, cert, key, err
}

// writeFiles writes files by name into a folder, which it creates.
func writeFiles(dir string, files map[string][]byte) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			return err
		}
	}
	return nil
}
