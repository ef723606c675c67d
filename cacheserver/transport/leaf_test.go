// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package transport

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/rows"
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

func TestParseAuthority(t *testing.T) {
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
		if _, err := parseAuthority([]byte(test.text)); (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

// TestLeaf checks the names of a server's certificate, how long it is valid, and that another one is made after a day.
func TestLeaf(t *testing.T) {
	t.Parallel()
	certificate, key := newCA(t, true)
	ca, err := parseAuthority([]byte(certificate + key))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(certificate))
	names := leafNames(TLS{Names: []string{"reviews-cache-service.team-a.svc"}}.Named("10.1.2.3:50051", "[::]:50051", "node-0.reviews:50051").Names)
	now := time.Now()
	made, err := ca.server(names, now)
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
	if _, err := leaf.Verify(x509.VerifyOptions{DNSName: "::", Roots: roots}); err == nil {
		t.Error("it is valid for an unspecified address")
	}
	if left := leaf.NotAfter.Sub(now).Round(time.Hour); left != leafLife {
		t.Errorf("it is valid for %s, want %s", left, leafLife)
	}
	for after, same := range map[time.Duration]bool{23 * time.Hour: true, 25 * time.Hour: false} {
		if again, err := ca.server(names, now.Add(after)); err != nil || (again == made) != same {
			t.Errorf("after %s: the same certificate = %v, want %v (%v)", after, again == made, same, err)
		}
	}
}

// TestAuthority checks for each implementation that a server with a CA takes TLS 1.3 by that CA and plain text, that it follows a new CA for
// new connections, and that an open connection goes on.
func TestAuthority(t *testing.T) {
	t.Parallel()
	for _, transport := range []Implementation{H2, GRPC} {
		t.Run(string(transport), func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "ca.pem")
			certificate, key := newCA(t, true)
			if err := os.WriteFile(path, []byte(certificate+key), 0o600); err != nil {
				t.Fatal(err)
			}
			secured := TLS{Authority: path, Plain: true}
			server, err := NewServer(transport, secured, rows.NewBudget(1<<30).Clients(), ops.NewMetrics(), slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			RegisterFlight(server, &schemes{})
			listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			go func() { _ = server.Serve(listener) }()
			defer server.Stop()
			scheme := func(conn *grpc.ClientConn) string {
				schema, err := flight.NewFlightServiceClient(conn).GetSchema(t.Context(), &flight.FlightDescriptor{})
				if err != nil {
					return err.Error()
				}
				return string(schema.GetSchema())
			}
			dial := func(of TLS) *grpc.ClientConn {
				conn, err := Dial(listener.Addr().String(), of, nil)
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = conn.Close() })
				return conn
			}
			open := dial(secured)
			if got := scheme(open); got != "grpc+tls" {
				t.Errorf("by TLS: %s", got)
			}
			if got := scheme(dial(TLS{})); got != "grpc" {
				t.Errorf("in plain text: %s", got)
			}
			old, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{MaxVersion: tls.VersionTLS12, InsecureSkipVerify: true}))) //nolint:gosec // to be refused
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = old.Close() }()
			if got := scheme(old); !strings.Contains(got, "protocol version") {
				t.Errorf("by TLS 1.2: %s", got)
			}
			stale := filepath.Join(t.TempDir(), "ca.pem")
			if err := os.Rename(path, stale); err != nil {
				t.Fatal(err)
			}
			certificate, key = newCA(t, true)
			if err := os.WriteFile(path, []byte(certificate+key), 0o600); err != nil {
				t.Fatal(err)
			}
			time.Sleep(lookEvery + 100*time.Millisecond)
			if got := scheme(dial(secured)); got != "grpc+tls" {
				t.Errorf("by the new CA: %s", got)
			}
			if got := scheme(dial(TLS{Authority: stale})); !strings.Contains(got, "unknown authority") {
				t.Errorf("by the old CA: %s", got)
			}
			if got := scheme(open); got != "grpc+tls" {
				t.Errorf("on the open connection: %s", got)
			}
		})
	}
}

// schemes is a service that answers with the scheme of the caller's connection.
type schemes struct{ flight.BaseFlightServer }

func (*schemes) GetSchema(ctx context.Context, _ *flight.FlightDescriptor) (*flight.SchemaResult, error) {
	return &flight.SchemaResult{Schema: []byte(Scheme(ctx))}, nil
}
