// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package workload

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"
)

// authorityLife is how long an authority's certificate is valid. Its servers' certificates are valid for days.
const authorityLife = 20 * 365 * 24 * time.Hour

// NewAuthority makes the authority that a cache's servers have their certificates from: its certificate, and its private key, both as PEM.
// name is for people.
func NewAuthority(name string, now time.Time) (certificate, key []byte, err error) {
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("make the authority's key: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, nil, fmt.Errorf("make the authority's serial number: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{Organization: []string{"datacache"}, CommonName: name},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(authorityLife), // clocks differ
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

// joined is the file that servers read.
func joined(certificate, key []byte) string {
	return string(bytes.Join([][]byte{certificate, key}, nil))
}
