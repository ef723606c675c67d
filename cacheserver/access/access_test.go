// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"log/slog"
	"maps"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/internal/identity"
)

const (
	cluster  = "https://kubernetes.default.svc"
	provider = "https://sso.example.com"
	reviews  = "datacache.kubeflow.org/namespaces/team-a/datacaches/reviews"
)

// signer signs tokens with one key.
type signer struct {
	id  string
	key *ecdsa.PrivateKey
}

func newSigner(t testing.TB, id string) signer {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return signer{id, key}
}

func (s signer) jwks() jose.JSONWebKeySet {
	return jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: &s.key.PublicKey, KeyID: s.id, Algorithm: "ES256"}}}
}

// sign returns a token that is valid for an hour.
func (s signer) sign(t testing.TB, claims map[string]any) string {
	t.Helper()
	made, err := jose.NewSigner(jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: s.key, KeyID: s.id}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	own := map[string]any{"iat": time.Now().Unix(), "exp": time.Now().Add(time.Hour).Unix()}
	maps.Copy(own, claims)
	token, err := jwt.Signed(made).Claims(own).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// account are the claims of a ServiceAccount's token.
func account(namespace, name, audience string) map[string]any {
	return map[string]any{
		"iss": cluster, "sub": "system:serviceaccount:" + namespace + ":" + name, "aud": audience,
		"kubernetes.io": map[string]any{"namespace": namespace, "serviceaccount": map[string]string{"name": name}, "pod": map[string]string{"name": name + "-0"}},
	}
}

// document is an access file that changes of it, by field, alter.
func document(t testing.TB, in, sso signer, changes map[string]any) string {
	t.Helper()
	tokens := filepath.Join(t.TempDir(), "tokens")
	if err := os.WriteFile(tokens, []byte("static-secret ops/alice\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	all := map[string]any{
		"readers": "Known", "audiences": []string{reviews}, "jobs": map[string]string{"5c0e": "train-x7"},
		"namespaces": []string{"team-a", "team-b"}, "accounts": []string{"team-b/etl"}, "tokens": tokens,
		"issuers": []map[string]any{
			{"url": cluster, "keys": in.jwks()},
			{"url": provider, "keys": sso.jwks(), "audience": "datacache", "claim": "groups", "values": []string{"ml"}},
		},
	}
	maps.Copy(all, changes)
	text, err := json.Marshal(all)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// guarded returns a guard of a file with this text, and the file's path.
func guarded(t testing.TB, text string) (g *Guard, path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "access.json")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	g, err := Open(path, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return g, path
}

// calls returns the context of a call over TLS, with authorization headers.
func calls(t testing.TB, headers ...string) context.Context {
	t.Helper()
	return over(plain(t, headers...), true)
}

// plain returns the context of a call in plain text.
func plain(t testing.TB, headers ...string) context.Context {
	t.Helper()
	md := metadata.MD{}
	md.Append("authorization", headers...)
	return over(metadata.NewIncomingContext(t.Context(), md), false)
}

// over returns ctx as one of a call over TLS, or in plain text.
func over(ctx context.Context, secure bool) context.Context {
	p := &peer.Peer{Addr: &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1)}}
	if secure {
		p.AuthInfo = credentials.TLSInfo{}
	}
	return peer.NewContext(ctx, p)
}

func TestReader(t *testing.T) {
	t.Parallel()
	in, sso := newSigner(t, "k1"), newSigner(t, "s1")
	g, _ := guarded(t, document(t, in, sso, nil))
	user := func(changes map[string]any) string {
		claims := map[string]any{"iss": provider, "sub": "mia@example.com", "aud": "datacache", "groups": []string{"sales", "ml"}}
		maps.Copy(claims, changes)
		return sso.sign(t, claims)
	}
	for name, test := range map[string]struct {
		token string
		who   string // name, pod
		code  codes.Code
		says  string
	}{
		"own namespace":            {token: in.sign(t, account("team-a", "default", reviews)), who: "team-a/default, default-0"},
		"of a job":                 {token: in.sign(t, account("team-a", "default", reviews+"/trainjobs/train")), who: "team-a/train, default-0"},
		"of a job without a name":  {token: in.sign(t, account("team-a", "default", reviews+"/trainjobs/5c0e")), who: "team-a/train-x7, default-0"},
		"a named account":          {token: in.sign(t, account("team-b", "etl", reviews)), who: "team-b/etl, etl-0"},
		"a static token":           {token: "static-secret", who: "ops/alice, "},
		"a user":                   {token: user(nil), who: "oidc:mia_example.com, "},
		"one group":                {token: user(map[string]any{"groups": "ml"}), who: "oidc:mia_example.com, "},
		"another account":          {token: in.sign(t, account("team-b", "default", reviews)), code: codes.PermissionDenied, says: "team-b/default may not read this cache: ask its owner for access.accounts"},
		"another namespace":        {token: in.sign(t, account("team-c", "default", reviews)), code: codes.PermissionDenied, says: "team-c/default may not read this cache: ask its owner for access.namespaces"},
		"no right group":           {token: user(map[string]any{"groups": []string{"sales"}}), code: codes.PermissionDenied, says: "claim groups"},
		"no group":                 {token: user(map[string]any{"groups": nil}), code: codes.PermissionDenied, says: "claim groups"},
		"user of another program":  {token: user(map[string]any{"aud": "other"}), code: codes.Unauthenticated, says: `token is for audience "other", not "datacache"`},
		"user of our audience":     {token: user(map[string]any{"aud": reviews}), code: codes.Unauthenticated, says: "token is for audience"},
		"another cache":            {token: in.sign(t, account("team-a", "default", "datacache.kubeflow.org/namespaces/team-a/datacaches/books")), code: codes.Unauthenticated, says: "token is for books, not reviews"},
		"a cache of a longer name": {token: in.sign(t, account("team-a", "default", reviews+"2")), code: codes.Unauthenticated, says: "token is for reviews2, not reviews"},
		"no job":                   {token: in.sign(t, account("team-a", "default", reviews+"/trainjobs/")), code: codes.Unauthenticated, says: "token is for reviews, not"},
		"more than a job":          {token: in.sign(t, account("team-a", "default", reviews+"/trainjobs/a/b")), code: codes.Unauthenticated, says: "token is for reviews, not"},
		"the API server":           {token: in.sign(t, account("team-a", "default", cluster)), code: codes.Unauthenticated, says: "not reviews"},
		"subject and claim differ": {token: in.sign(t, with(account("team-a", "default", reviews), "sub", "system:serviceaccount:team-b:etl")), code: codes.Unauthenticated, says: "is not the ServiceAccount"},
		"a user as an account":     {token: in.sign(t, with(account("team-a", "default", reviews), "sub", "mia")), code: codes.Unauthenticated, says: "is not the ServiceAccount"},
		"signed by the other":      {token: sso.sign(t, account("team-a", "default", reviews)), code: codes.Unavailable, says: `key "s1" is unknown here yet`},
		"another issuer":           {token: in.sign(t, with(account("team-a", "default", reviews), "iss", "https://evil")), code: codes.Unauthenticated, says: `does not take tokens of issuer "https://evil"`},
		"no token at all":          {token: "x", code: codes.Unauthenticated, says: "not a JWT"},
	} {
		for _, header := range []string{"Bearer " + test.token, "Basic " + base64.StdEncoding.EncodeToString([]byte("anyone:"+test.token))} {
			who, err := g.Reader(calls(t, header))
			if status.Code(err) != test.code || !strings.Contains(status.Convert(err).Message(), test.says) {
				t.Errorf("%s: %v, want %v: %s", name, err, test.code, test.says)
			}
			if test.code == codes.OK && (who == nil || who.Name()+", "+who.Pod != test.who) {
				t.Errorf("%s: %+v, want %s", name, who, test.who)
			}
		}
	}
	for name, headers := range map[string][]string{
		"none": nil, "two": {"Bearer static-secret", "Bearer static-secret"}, "another scheme": {"Digest static-secret"}, "broken Basic": {"Basic !"},
	} {
		if _, err := g.Reader(calls(t, headers...)); status.Code(err) != codes.Unauthenticated {
			t.Errorf("%s: %v, want Unauthenticated", name, err)
		}
	}
	if _, err := g.Reader(plain(t, "Bearer static-secret")); status.Code(err) != codes.Unauthenticated || !strings.Contains(err.Error(), `"kubectl datacache login reviews", or access.readers: Anyone`) {
		t.Errorf("a plain call: %v", err)
	}
}

func TestWriter(t *testing.T) {
	t.Parallel()
	in, sso := newSigner(t, "k1"), newSigner(t, "s1")
	token := func(namespace, name string) string { return "Bearer " + in.sign(t, account(namespace, name, reviews)) }
	user := "Bearer " + sso.sign(t, map[string]any{"iss": provider, "sub": "team-a/default", "aud": "datacache", "groups": "ml"})
	only := []string{"team-a/*", "team-b/etl", "ops/bob"}
	for name, test := range map[string]struct {
		changes map[string]any
		headers []string
		who     string
		code    codes.Code
		says    string
	}{
		"who may read":            {headers: []string{"Bearer static-secret"}, who: "ops/alice"},
		"nobody":                  {changes: map[string]any{"writers": []string{}}, headers: []string{token("team-a", "default")}, code: codes.PermissionDenied},
		"of a namespace":          {changes: map[string]any{"writers": only}, headers: []string{token("team-a", "default")}, who: "team-a/default"},
		"of a job":                {headers: []string{"Bearer " + in.sign(t, account("team-a", "default", reviews+"/trainjobs/train"))}, who: "team-a/default"},
		"a user":                  {headers: []string{user}, who: "oidc:team-a/default"},
		"an account":              {changes: map[string]any{"writers": only}, headers: []string{token("team-b", "etl")}, who: "team-b/etl"},
		"another account":         {changes: map[string]any{"writers": only}, headers: []string{"Bearer static-secret"}, code: codes.PermissionDenied, says: "ops/alice may read this cache and not put datasets: ask its owner for spec.arrow.puts.writers"},
		"a user of the same name": {changes: map[string]any{"writers": only}, headers: []string{user}, code: codes.PermissionDenied, says: "team-a/default may read"},
		"no reader":               {changes: map[string]any{"writers": []string{"team-c/*"}}, headers: []string{token("team-c", "default")}, code: codes.PermissionDenied, says: "may not read this cache"},
		"anyone":                  {changes: map[string]any{"readers": "Anyone"}},
		"anyone reads":            {changes: map[string]any{"readers": "Anyone", "writers": only}, code: codes.Unauthenticated, says: "only known writers"},
		"anyone reads, he writes": {changes: map[string]any{"readers": "Anyone", "writers": only}, headers: []string{token("team-a", "default")}, who: "team-a/default"},
	} {
		g, _ := guarded(t, document(t, in, sso, test.changes))
		caller, err := g.Writer(calls(t, test.headers...))
		who := ""
		if caller != nil {
			who = identity.Identity{Namespace: caller.Namespace, Account: caller.Account}.Name()
		}
		if sent := g.Put(calls(t), caller); err == nil && sent != nil {
			t.Errorf("%s: with the ticket: %v", name, sent)
		}
		if who != test.who || status.Code(err) != test.code || !strings.Contains(status.Convert(err).Message(), test.says) {
			t.Errorf("%s: %q, %v, want %q, %v: %s", name, who, err, test.who, test.code, test.says)
		}
	}
	if who, err := (*Guard)(nil).Writer(t.Context()); who != nil || err != nil {
		t.Errorf("without rules: %v, %v", who, err)
	}
}

func with(claims map[string]any, name string, value any) map[string]any {
	claims[name] = value
	return claims
}

func TestAnyone(t *testing.T) {
	t.Parallel()
	in, sso := newSigner(t, "k1"), newSigner(t, "s1")
	g, _ := guarded(t, document(t, in, sso, map[string]any{"readers": "Anyone"}))
	for _, secure := range []bool{false, true} {
		if who, err := g.Reader(over(calls(t), secure)); err != nil || who != nil {
			t.Errorf("without a token: %+v, %v", who, err)
		}
		if who, err := g.Reader(over(calls(t, "Bearer "+in.sign(t, account("team-c", "x", reviews))), secure)); err != nil || who.Name() != "team-c/x" {
			t.Errorf("with a token: %+v, %v", who, err)
		}
		if _, err := g.Reader(over(calls(t, "Bearer no"), secure)); status.Code(err) != codes.Unauthenticated {
			t.Errorf("with a wrong token: %v", err)
		}
		if err := g.Stream(over(t.Context(), secure), nil); err != nil {
			t.Errorf("a stream: %v", err)
		}
	}
	var none *Guard
	if who, err := none.Reader(plain(t, "Bearer no")); err != nil || who != nil || none.Stream(t.Context(), nil) != nil || none.Status() != nil {
		t.Errorf("without rules: %+v, %v", who, err)
	}
}

// TestRulesChange checks that each change of the file holds for the next call, also for a token that was good before, and that an invalid
// file changes nothing.
func TestRulesChange(t *testing.T) {
	t.Parallel()
	in, sso, next := newSigner(t, "k1"), newSigner(t, "s1"), newSigner(t, "k2")
	g, path := guarded(t, document(t, in, sso, nil))
	old, renewed := "Bearer "+in.sign(t, account("team-b", "etl", reviews)), "Bearer "+next.sign(t, account("team-b", "etl", reviews))
	ticket := &identity.Identity{Namespace: "team-b", Account: "etl", Issuer: cluster}
	changes := 0
	g.OnChange(func() { changes++ })
	check := func(step, text string, known bool, want map[string]codes.Code, stream codes.Code) {
		t.Helper()
		if text != "" {
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			g.Look()
		}
		for header, code := range want {
			if _, err := g.Reader(calls(t, header)); status.Code(err) != code {
				t.Errorf("%s: %v, want %v", step, err, code)
			}
		}
		if err := g.Stream(calls(t), ticket); status.Code(err) != stream {
			t.Errorf("%s: a stream gets %v, want %v", step, err, stream)
		}
		if g.Known() != known {
			t.Errorf("%s: known = %v", step, g.Known())
		}
	}
	check("at first", "", true, map[string]codes.Code{old: codes.OK, renewed: codes.Unavailable}, codes.OK)
	if s := g.Status(); s.Readers != "Known" || s.UnknownKey != "k2" {
		t.Errorf("the status is %+v", s)
	}
	both := []map[string]any{{"url": cluster, "keys": jose.JSONWebKeySet{Keys: append(in.jwks().Keys, next.jwks().Keys...)}}}
	check("a new key", document(t, in, sso, map[string]any{"issuers": both}), true, map[string]codes.Code{old: codes.OK, renewed: codes.OK}, codes.OK)
	if s := g.Status(); s.UnknownKey != "" {
		t.Errorf("the status is still %+v", s)
	}
	check("the old key is gone", document(t, next, sso, nil), true, map[string]codes.Code{old: codes.Unavailable, renewed: codes.OK}, codes.OK)
	check("an invalid file", `{"readers": "Nobody"}`, true, map[string]codes.Code{old: codes.Unavailable, renewed: codes.OK}, codes.OK)
	check("null", "null", true, map[string]codes.Code{old: codes.Unavailable, renewed: codes.OK}, codes.OK)
	check("narrowed", document(t, next, sso, map[string]any{"namespaces": []string{"team-a"}}), true, map[string]codes.Code{renewed: codes.PermissionDenied}, codes.PermissionDenied)
	check("opened", `{"readers": "Anyone"}`, false, map[string]codes.Code{renewed: codes.Unauthenticated}, codes.OK)
	check("no issuers", `{"readers": "Known"}`, true, map[string]codes.Code{renewed: codes.Unauthenticated}, codes.PermissionDenied)
	check("all namespaces", document(t, next, sso, map[string]any{"namespaces": []string{"*"}, "accounts": nil}), true, map[string]codes.Code{renewed: codes.OK}, codes.OK)
	if changes != 6 {
		t.Errorf("%d changes were told, want 6", changes)
	}
}

func TestPlainRows(t *testing.T) {
	t.Parallel()
	in, sso := newSigner(t, "k1"), newSigner(t, "s1")
	who := &identity.Identity{Namespace: "ops", Account: "alice"}
	for rows, want := range map[string]codes.Code{"TLS": codes.Unauthenticated, "Plain": codes.OK} {
		g, _ := guarded(t, document(t, in, sso, map[string]any{"rows": rows}))
		if err := g.Stream(plain(t), who); status.Code(err) != want {
			t.Errorf("rows %s: a plain stream gets %v, want %v", rows, err, want)
		}
		if err := g.Stream(calls(t), nil); status.Code(err) != codes.Unauthenticated {
			t.Errorf("rows %s: a ticket without a reader gets %v", rows, err)
		}
	}
}

func TestParse(t *testing.T) {
	t.Parallel()
	in, sso := newSigner(t, "k1"), newSigner(t, "s1")
	for text, want := range map[string]string{
		`{}`:                      "",
		document(t, in, sso, nil): "",
		`{"readers": "known"}`:    `readers: "known", want Anyone or Known`,
		`{"rows": "Sealed"}`:      `rows: "Sealed", want TLS or Plain`,
		`{"reader": "Known"}`:     `unknown field "reader"`,
		`{} {}`:                   "nothing behind it",
		``:                        "want a JSON object",
		"null":                    "want a JSON object as in docs/adr/0036-known-readers.md, not null",
		" null\n":                 "not null",
		"0":                       "want a JSON object",
		`"Anyone"`:                "want a JSON object",
		"[]":                      "want a JSON object",
		`{"audiences": [""]}`:     "audiences[0]: empty",
		`{"accounts": ["etl"]}`:   `accounts[0]: "etl", want NAMESPACE/NAME`,
		`{"writers": ["a/b/c"]}`:  `writers[0]: "a/b/c", want NAMESPACE/NAME of a ServiceAccount, or NAMESPACE/*`,
		`{"tokens": "/nowhere"}`:  "tokens: open /nowhere",
		`{"issuers": [{"url": "sso", "keys": {"keys": []}}]}`:                                                   `issuers[0].url: "sso"`,
		`{"issuers": [{"url": "https://a"}]}`:                                                                   "issuers[0].keys: missing",
		`{"issuers": [{"url": "https://a", "keys": {"keys": []}, "audience": "x"}]}`:                            "go together",
		`{"issuers": [{"url": "https://a", "keys": {"keys": [{"kty": "oct", "k": "AA"}]}}]}`:                    "is not a public key",
		`{"issuers": [{"url": "https://a", "keys": {"keys": []}}, {"url": "https://a", "keys": {"keys": []}}]}`: "is there twice",
	} {
		if _, err := parse([]byte(text)); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(document(f, newSigner(f, "k1"), newSigner(f, "s1"), map[string]any{"tokens": ""})))
	f.Add([]byte(`{"readers": "Known", "accounts": ["a/b"]}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		if strings.Contains(strings.ToLower(string(text)), "tok") {
			t.Skip("it may name a file")
		}
		r, err := parse(text)
		if err == nil && r.known && r.permits(identity.Identity{Namespace: "team-x", Account: "y", Issuer: "not in the file"}) == nil {
			t.Fatal("somebody of no issuer may read")
		}
	})
}

// TestAnswersEndWithTheirTokens checks that a token is refused once it has expired, although it was good a moment before.
func TestAnswersEndWithTheirTokens(t *testing.T) {
	t.Parallel()
	in := newSigner(t, "k1")
	g, _ := guarded(t, document(t, in, newSigner(t, "s1"), nil))
	header := "Bearer " + in.sign(t, account("team-a", "default", reviews))
	start := time.Now()
	for _, after := range []time.Duration{0, 59 * time.Minute, 60*time.Minute + 30*time.Second, 62 * time.Minute} {
		g.now = func() time.Time { return start.Add(after) }
		want := codes.OK
		if after > 61*time.Minute {
			want = codes.Unauthenticated
		}
		if _, err := g.Reader(calls(t, header)); status.Code(err) != want {
			t.Errorf("after %s: %v, want %v", after, err, want)
		}
	}
}
