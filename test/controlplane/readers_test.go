// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	ice "github.com/apache/iceberg-go"
	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/test/kit/icetest"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

// nextServer is the host of the API server with a new key, nil before there is one.
var nextServer atomic.Pointer[string]

// keysOfNextServer lets the managers' requests for the keys of tokens reach that API server, as a load balancer does.
func keysOfNextServer(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		if host := nextServer.Load(); host != nil && (r.URL.Path == "/openid/v1/jwks" || r.URL.Path == "/.well-known/openid-configuration") {
			r = r.Clone(r.Context())
			r.URL.Host = *host
		}
		return next.RoundTrip(r)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// token returns a token of the namespace's account default from the API server that the client talks to.
func token(t *testing.T, from client.Client, namespace string, audiences ...string) string {
	t.Helper()
	owner := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "default"}}
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{Audiences: audiences}}
	kubetest.Eventually(t, "a token", func() error { return from.SubResource("token").Create(t.Context(), owner, request) })
	return request.Status.Token
}

// mount writes the file of a cache's readers that its pods mount, as the kubelet does.
func mount(t *testing.T, dc *v1alpha1.DataCache, path string) error {
	t.Helper()
	config := &corev1.ConfigMap{}
	if err := cluster.Client.Get(t.Context(), client.ObjectKey{Namespace: dc.Namespace, Name: dc.Name + "-cache-access"}, config); err != nil {
		return err
	}
	return errors.Join(os.WriteFile(path+".new", []byte(config.Data["ACCESS"]), 0o600), os.Rename(path+".new", path))
}

// asks returns what the head answers to a request with the token, over TLS: codes.OK if its sender may read.
func asks(t *testing.T, address string, dc *v1alpha1.DataCache, bearer string) error {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM([]byte(dc.Status.CABundle))
	by := credentials.NewTLS(&tls.Config{RootCAs: roots, ServerName: "datacache", MinVersion: tls.VersionTLS13})
	if bearer == "" {
		by = insecure.NewCredentials()
	}
	c, err := flight.NewClientWithMiddleware(address, nil, nil, grpc.WithTransportCredentials(by))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if bearer != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer "+bearer)
	}
	_, err = c.GetFlightInfo(ctx, &flight.FlightDescriptor{Type: flight.DescriptorPATH, Path: []string{"0", "1"}})
	return err
}

// TestReaders runs the program with the files that the manager has made, and asks it with tokens of the API server: for this cache, for others, of
// other namespaces; with those of an OpenID provider; and with one of another API server with a new key, which the manager fetches when the head has
// seen it.
func TestReaders(t *testing.T) {
	t.Parallel()
	ns, other := cluster.Namespace(t), cluster.Namespace(t)
	dc, sso := named(ns, "reviews"), newProvider(t)
	dc.Spec.Access.Issuers = []v1alpha1.Issuer{sso.issuer}
	cluster.Create(t, dc)
	saysReaders(t, dc, metav1.ConditionTrue, v1alpha1.ReasonKnown)
	authorityOf(t, dc)
	rules, authority := filepath.Join(t.TempDir(), "access.json"), filepath.Join(t.TempDir(), "authority.pem")
	kubetest.Eventually(t, "the cache's rules", func() error { return mount(t, dc, rules) })
	secret := appears(t, &corev1.Secret{}, ns, secretOf(cachePods(t, ns, 2)[0].Spec))
	if err := os.WriteFile(authority, secret.Data["CACHE_CA"], 0o600); err != nil {
		t.Fatal(err)
	}
	table := icetest.Local(t).Create("reviews", 2, ice.NewSchema(0, ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64}))
	table.Append(icetest.Row{"id": 1})
	server := proctest.Start(t, "local", []string{"TLS_AUTHORITY=" + authority, "ACCESS_FILE=" + rules, "CACHE_SECRET=" + string(secret.Data["CACHE_SECRET"])},
		cacheserver, "local", "--metadata", table.Metadata(), "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--memory-limit", "256Mi")
	var address, web string
	kubetest.Eventually(t, "the server to be ready", func() error {
		server.Alive()
		found := regexp.MustCompile(`ready grpc\+?[a-z]*://(\S+) http://(\S+)`).FindStringSubmatch(server.Output.String())
		if found == nil {
			return errors.New(server.Output.String())
		}
		address, web = found[1], found[2]
		return nil
	})
	heads.serve(ns, "reviews", web)
	cluster.DataCache(t, ns, "reviews", v1alpha1.StateReady)
	saysReaders(t, dc, metav1.ConditionTrue, v1alpha1.ReasonKnown)

	audience := "datacache.kubeflow.org/namespaces/" + ns + "/datacaches/reviews"
	for what, tt := range map[string]struct {
		bearer string
		code   codes.Code
		said   string
	}{
		"for this cache":             {token(t, cluster.Client, ns, audience), codes.OK, ""},
		"for a TrainJob":             {token(t, cluster.Client, ns, audience+"/trainjobs/train"), codes.OK, ""},
		"none":                       {"", codes.Unauthenticated, `takes known readers over TLS: use kubeflow_datacache in a TrainJob`},
		"for another cache":          {token(t, cluster.Client, ns, audience+"2"), codes.Unauthenticated, "token is for reviews2, not reviews"},
		"for two":                    {token(t, cluster.Client, ns, audience, audience+"/trainjobs/train"), codes.Unauthenticated, "it has 2 audiences, want exactly one"},
		"of a provider":              {sso.token(t, "datacache", "sales", "ml"), codes.OK, ""},
		"of another group there":     {sso.token(t, "datacache", "sales"), codes.PermissionDenied, "its claim groups has none of the values of access.issuers"},
		"of a provider for others":   {sso.token(t, "wiki", "ml"), codes.Unauthenticated, `token is for audience "wiki", not "datacache"`},
		"of an unknown provider":     {newProvider(t).token(t, "datacache", "ml"), codes.Unauthenticated, "its signature is not of key"},
		"for the API server":         {token(t, cluster.Client, ns), codes.Unauthenticated, "token is for"},
		"of a namespace without one": {token(t, cluster.Client, other, audience), codes.PermissionDenied, other + "/default may not read this cache: ask its owner for access.namespaces"},
	} {
		err := asks(t, address, dc, tt.bearer)
		if status.Code(err) != tt.code || !strings.Contains(fmt.Sprint(err), tt.said) {
			t.Errorf("a token %s: %v, want %s and %q", what, err, tt.code, tt.said)
		}
	}

	logsIn(t, dc, other, address)

	next, err := cluster.StartWithNewKey(context.WithoutCancel(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	from, err := client.New(next, client.Options{Scheme: cluster.Client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	renewed := token(t, from, ns, audience)
	if err := asks(t, address, dc, renewed); status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "is unknown here yet") {
		t.Errorf("a token with a new key: %v", err)
	}
	host := strings.TrimPrefix(next.Host, "https://")
	nextServer.Store(&host)
	// The manager looks at a Ready cache every 30 s.
	kubetest.Eventually(t, "the head to know the new key", func() error {
		return errors.Join(mount(t, dc, rules), asks(t, address, dc, renewed))
	})
	if err := asks(t, address, dc, token(t, cluster.Client, ns, audience)); err != nil {
		t.Errorf("a token with the first key: %v", err)
	}
}

// provider is an OpenID provider.
type provider struct {
	issuer v1alpha1.Issuer
	key    *ecdsa.PrivateKey
}

func newProvider(t *testing.T) *provider {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	keys, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &key.PublicKey, KeyID: "s1", Algorithm: "ES256"}}})
	if err != nil {
		t.Fatal(err)
	}
	return &provider{v1alpha1.Issuer{URL: "https://sso.example.com", Keys: string(keys), Audience: "datacache", Claim: "groups", Values: []string{"ml"}}, key}
}

// token returns a token of a user in groups.
func (p *provider) token(t *testing.T, audience string, groups ...string) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: p.key, KeyID: "s1"}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(map[string]any{
		"iss": p.issuer.URL, "sub": "mia", "aud": audience, "groups": groups, "iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix(),
	}).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// logsIn checks that kubectl datacache login writes a token with which its user's namespace may read, and a certificate; and what it does not do.
func logsIn(t *testing.T, dc *v1alpha1.DataCache, other, address string) {
	t.Helper()
	folder := filepath.Join(t.TempDir(), "mine")
	for account, want := range map[string]codes.Code{dc.Namespace: codes.OK, other: codes.PermissionDenied} {
		if out, err := pluginFor(t, account).call("login " + dc.Namespace + "/reviews --for 1h --dir " + folder); err != nil || !strings.Contains(out, "export DATACACHE_CREDENTIALS="+folder) {
			t.Fatalf("login: %v: %s", err, out)
		}
		written, err := os.ReadFile(filepath.Join(folder, "token"))
		if err != nil {
			t.Fatal(err)
		}
		if err := asks(t, address, dc, string(written)); status.Code(err) != want {
			t.Errorf("a token by login of namespace %s: %v, want %s", account, err, want)
		}
	}
	if authority, err := os.ReadFile(filepath.Join(folder, "ca.crt")); err != nil || string(authority) != dc.Status.CABundle {
		t.Errorf("ca.crt has %q (%v), want that of the status", authority, err)
	}
	for args, want := range map[string]string{
		"login reviews": "--dir: missing", "login reviews --for 48h --dir " + folder: "--for: 48h0m0s, want 10m to 24h",
		"login nothing --dir " + folder: `datacaches.datacache.kubeflow.org "nothing" not found`, "login reviews --account nobody --dir " + folder: `serviceaccounts "nobody" not found`,
	} {
		if out, err := pluginFor(t, dc.Namespace).call(args); err == nil || !strings.Contains(out, want) {
			t.Errorf("%s: %v: %s, want %q", args, err, out, want)
		}
	}
}
