// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	bignumber "math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/test/kit/deadline"
)

// TestCertificatesAreReadAgain replaces the certificate of a running head and data node: new connections must get the new one, also after files
// that are invalid for a while.
func TestCertificatesAreReadAgain(t *testing.T) {
	for _, transport := range transports {
		t.Run(string(transport), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, onDisk(t, 2, 50, 25), 1)
			cert, key := filepath.Join(t.TempDir(), "cert.pem"), filepath.Join(t.TempDir(), "key.pem")
			writePair(t, cert, key, 1)
			c.args = append(c.args, "--transport", string(transport), "--tls-cert", cert, "--tls-key", key, "--tls-ca", cert)
			c.startAll()
			c.await(protocol.StateReady)
			servers := map[string]string{"head": c.headAddr, "data node": c.nodeAddrs[0]}
			for name, address := range servers {
				if serial := presented(t, address); serial != 1 {
					t.Errorf("the %s presents certificate %d, want 1", name, serial)
				}
			}
			if err := os.WriteFile(cert, []byte("not a certificate"), 0o600); err != nil {
				t.Fatal(err)
			}
			deadline.Eventually(t, func() error { // the head reads its files again when a client connects
				if serial := presented(t, c.headAddr); serial != 1 {
					t.Fatalf("with an invalid file, the head presents certificate %d, want 1", serial)
				}
				if !strings.Contains(c.head.output.String(), "file is invalid") {
					return errors.New("the head has not read the invalid file")
				}
				return nil
			})
			writePair(t, cert, key, 2)
			for name, address := range servers {
				deadline.Eventually(t, func() error {
					if serial := presented(t, address); serial != 2 {
						return fmt.Errorf("the %s presents certificate %d, want 2", name, serial)
					}
					return nil
				})
			}
			c.nodes[0].kill() // it joins again, by the new certificate
			c.startNode(0)
			c.await(protocol.StateReady)
		})
	}
}

// presented returns the serial number of the certificate that a server presents.
func presented(t *testing.T, address string) int64 {
	t.Helper()
	config := &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}} //nolint:gosec // the test looks at the certificate itself
	conn, err := (&tls.Dialer{Config: config}).DialContext(deadline.Context(t), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	return conn.(*tls.Conn).ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}

// writePair writes a certificate for loopback, signed by itself, and its key to two PEM files.
func writePair(t *testing.T, cert, key string, serial int64) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: bignumber.NewInt(serial), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{"localhost"},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, private.Public(), private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{key: {Type: "PRIVATE KEY", Bytes: pkcs8}, cert: {Type: "CERTIFICATE", Bytes: der}} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
