// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

// signer is a CA that issues certificates for the name "cache".
type signer struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  string
}

func newAuthority(t *testing.T) *signer {
	t.Helper()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageCertSign,
	}
	a := &signer{key: newKey(t)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	a.pem = encodePEM("CERTIFICATE", der)
	return a
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func encodePEM(kind string, der []byte) string {
	return string(pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
}

// issue creates a certificate and its key, as PEM.
func (a *signer) issue(t *testing.T, serial int64) (cert, key string) {
	t.Helper()
	private := newKey(t)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(serial), DNSNames: []string{"cache"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &private.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return encodePEM("CERTIFICATE", der), encodePEM("PRIVATE KEY", pkcs8)
}

// TestTLS runs two object caches that forward to each other over TLS, and replaces their certificate.
func TestTLS(t *testing.T) {
	t.Parallel()
	a, dir := newAuthority(t), t.TempDir()
	certFile, keyFile := filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	renew := func(serial int64) {
		cert, key := a.issue(t, serial)
		write(t, certFile, cert) // before the key is written: a reload in between must not keep the old pair forever
		write(t, keyFile, key)
	}
	renew(2)
	args := []string{"--tls-cert", certFile, "--tls-key", keyFile, "--tls-ca", write(t, filepath.Join(dir, "ca.crt"), a.pem), "--tls-name", "cache"}
	addresses := map[string]string{"here": proctest.FreeAddress(t), "there": proctest.FreeAddress(t)}
	for name, address := range addresses {
		args = append(args, "--peer", name+"="+address)
	}
	for name, address := range addresses {
		start(t, options{args: append([]string{"--name", name, "--listen", address}, args...)})
	}
	roots := x509.NewCertPool()
	roots.AddCert(a.cert)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "cache"}, DisableKeepAlives: true}}
	ask := func(method, name, key, body string) (status int, text string, serial int64) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, "https://"+addresses[name]+"/v1/objects/open/"+key, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := client.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		got, err := io.ReadAll(response.Body)
		if err != nil {
			t.Fatal(err)
		}
		return response.StatusCode, string(got), response.TLS.PeerCertificates[0].SerialNumber.Int64()
	}
	body := content("key", 0, 3<<20)
	for i := range 8 { // of both nodes
		if status, text, _ := ask(http.MethodPut, "here", fmt.Sprint(i), body); status != http.StatusCreated {
			t.Fatalf("PUT %d: %d %s", i, status, text)
		}
		if status, text, serial := ask(http.MethodGet, "there", fmt.Sprint(i), ""); status != http.StatusOK || text != body || serial != 2 {
			t.Errorf("GET %d: %d with %d bytes by certificate %d", i, status, len(text), serial)
		}
	}
	renew(3)
	deadline.Eventually(t, func() error {
		if status, _, serial := ask(http.MethodGet, "here", "0", ""); serial != 3 || status != http.StatusOK {
			return fmt.Errorf("status %d by certificate %d, want 200 by 3", status, serial)
		}
		return nil
	})
}
