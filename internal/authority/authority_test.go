// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"strings"
	"testing"
	"time"
)

// newCA returns PEM of the certificate of a new CA, and of its key.
func newCA(t *testing.T, isCA bool) (certificate, key string) {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "reviews"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().AddDate(10, 0, 0),
		IsCA: isCA, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &private.PublicKey, private)
	if err != nil {
		t.Fatal(err)
	}
	pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pkcs8}))
}

func TestParse(t *testing.T) {
	t.Parallel()
	certificate, key := newCA(t, true)
	leaf, leafKey := newCA(t, false)
	for name, test := range map[string]struct{ text, want string }{
		"both":           {certificate + key, ""},
		"the key first":  {key + certificate, ""},
		"nothing":        {"", "want PEM of a CA's certificate and of its private key"},
		"no key":         {certificate, "want PEM"},
		"no certificate": {key, "want PEM"},
		"another key":    {certificate + leafKey, "is not that of the CA's certificate"},
		"not a CA":       {leaf + leafKey, `"reviews" is not one of a CA`},
		"a broken one":   {strings.Replace(certificate, "MII", "AAA", 1) + key, "CERTIFICATE: "},
		"a broken key":   {certificate + strings.Replace(key, "MIG", "AAA", 1), "PRIVATE KEY: "},
	} {
		if _, err := Parse([]byte(test.text)); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

// TestLeaf checks the names of a server's certificate, how long it is valid, and that another one is made after a day.
func TestLeaf(t *testing.T) {
	t.Parallel()
	certificate, key := newCA(t, true)
	ca, err := Parse([]byte(certificate + key))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(certificate))
	names := Names([]string{"reviews-cache-service.team-a.svc", "10.1.2.3", "node-0.reviews", "", "localhost"})
	now := time.Now()
	made, err := ca.Server(names, now)
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(made.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{ServerName, "localhost", "127.0.0.1", "::1", "10.1.2.3", "node-0.reviews", "reviews-cache-service.team-a.svc"} {
		if _, err := leaf.Verify(x509.VerifyOptions{DNSName: name, Roots: roots}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	if left := leaf.NotAfter.Sub(now).Round(time.Hour); left != leafLife {
		t.Errorf("it is valid for %s, want %s", left, leafLife)
	}
	for _, later := range []struct {
		after time.Duration
		same  bool
	}{{23 * time.Hour, true}, {25 * time.Hour, false}} {
		if again, err := ca.Server(names, now.Add(later.after)); err != nil || (again == made) != later.same {
			t.Errorf("after %s: the same certificate = %v, want %v (%v)", later.after, again == made, later.same, err)
		}
	}
}

// TestNew checks that servers of a CA that New makes are verified by its certificate.
func TestNew(t *testing.T) {
	t.Parallel()
	certificate, key, err := New("reviews", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	ca, err := Parse(Join(certificate, key))
	if err != nil {
		t.Fatal(err)
	}
	if ca.PEM() != string(certificate) {
		t.Errorf("PEM is %s, want %s", ca.PEM(), certificate)
	}
	made, err := ca.Server(Names(nil), time.Now())
	if err != nil {
		t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(made.Certificate[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := leaf.Verify(x509.VerifyOptions{DNSName: ServerName, Roots: ca.Pool()}); err != nil {
		t.Error(err)
	}
}
