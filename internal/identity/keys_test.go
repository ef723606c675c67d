// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

const (
	cluster = "https://kubernetes.default.svc"
	books   = "datacache.kubeflow.org/namespaces/team-a/datacaches/books"
)

var noon = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

// issuer is an issuer of tokens with one key.
type issuer struct {
	id      string
	alg     jose.SignatureAlgorithm
	private any
	public  any
}

func newIssuer(t testing.TB, id string, alg jose.SignatureAlgorithm) issuer {
	t.Helper()
	if alg == jose.RS256 {
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			t.Fatal(err)
		}
		return issuer{id, alg, key, &key.PublicKey}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return issuer{id, alg, key, &key.PublicKey}
}

// jwks returns the JSON of the issuers' public keys.
func jwks(t testing.TB, issuers ...issuer) []byte {
	t.Helper()
	var set jose.JSONWebKeySet
	for _, i := range issuers {
		set.Keys = append(set.Keys, jose.JSONWebKey{Key: i.public, KeyID: i.id, Algorithm: string(i.alg), Use: "sig"})
	}
	text, err := json.Marshal(set)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// claims are those of a ServiceAccount's token, with changes; a nil value removes a claim.
func claims(changes map[string]any) map[string]any {
	all := map[string]any{
		"iss": cluster, "sub": "system:serviceaccount:team-b:etl", "aud": []string{books},
		"exp": noon.Add(time.Hour).Unix(), "iat": noon.Unix(), "nbf": noon.Unix(),
		"kubernetes.io": map[string]any{"namespace": "team-b", "serviceaccount": map[string]any{"name": "etl"}, "pod": map[string]any{"name": "etl-0"}},
	}
	maps.Copy(all, changes)
	maps.DeleteFunc(all, func(_ string, value any) bool { return value == nil })
	return all
}

func (i issuer) sign(t testing.TB, claims map[string]any) string {
	t.Helper()
	return signed(t, i.alg, i.private, i.id, claims)
}

func signed(t testing.TB, alg jose.SignatureAlgorithm, key any, id string, claims map[string]any) string {
	t.Helper()
	signer, err := jose.NewSigner(jose.SigningKey{Algorithm: alg, Key: jose.JSONWebKey{Key: key, KeyID: id}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jwt.Signed(signer).Claims(claims).Serialize()
	if err != nil {
		t.Fatal(err)
	}
	return token
}

// trusts returns the lookup of a set that trusts the cluster alone.
func trusts(t testing.TB, text []byte) func(string) (Keys, error) {
	t.Helper()
	keys, err := ParseKeys(text)
	if err != nil {
		t.Fatal(err)
	}
	return func(url string) (Keys, error) {
		if url != cluster {
			return Keys{}, fmt.Errorf("%w: of issuer %q", ErrUnknown, url)
		}
		return keys, nil
	}
}

func TestVerify(t *testing.T) {
	t.Parallel()
	own, next, stranger := newIssuer(t, "k1", jose.RS256), newIssuer(t, "k2", jose.ES256), newIssuer(t, "k1", jose.RS256)
	trusted := trusts(t, jwks(t, own, next))
	public, err := x509.MarshalPKIXPublicKey(own.public)
	if err != nil {
		t.Fatal(err)
	}
	with := func(changes map[string]any) string { return own.sign(t, claims(changes)) }
	at := func(from, to time.Duration) string {
		return with(map[string]any{"iat": noon.Add(from).Unix(), "nbf": noon.Add(from).Unix(), "exp": noon.Add(to).Unix()})
	}
	none := strings.Split(with(nil), ".")
	none[0] = "eyJhbGciOiJub25lIn0" // {"alg":"none"}
	for name, test := range map[string]struct{ token, want string }{
		"good":                   {with(nil), ""},
		"of the second key":      {next.sign(t, claims(nil)), ""},
		"audience as text":       {with(map[string]any{"aud": books}), ""},
		"without iat":            {with(map[string]any{"iat": nil}), ""},
		"expired within skew":    {at(-time.Hour, -59*time.Second), ""},
		"from within skew":       {at(59*time.Second, time.Hour), ""},
		"a day":                  {at(0, 24*time.Hour), ""},
		"expired":                {at(-time.Hour, -61*time.Second), "it expired 2026-01-31T11:58:59Z, now 2026-01-31T12:00:00Z"},
		"not yet":                {at(61*time.Second, time.Hour), "it is valid from 2026-01-31T12:01:01Z"},
		"nbf after iat":          {with(map[string]any{"nbf": noon.Add(2 * time.Minute).Unix()}), "it is valid from"},
		"a year":                 {at(0, 365*24*time.Hour), "want at most 24h"},
		"a year, all but over":   {at(-364*24*time.Hour, time.Hour), "want at most 24h"},
		"without exp":            {with(map[string]any{"exp": nil}), "it has no exp"},
		"without iat and nbf":    {with(map[string]any{"iat": nil, "nbf": nil}), "neither iat nor nbf"},
		"two audiences":          {with(map[string]any{"aud": []string{books, "other"}}), "2 audiences, want exactly one"},
		"no audience":            {with(map[string]any{"aud": nil}), "0 audiences"},
		"of another issuer":      {with(map[string]any{"iss": "https://evil.example.com"}), `of issuer "https://evil.example.com"`},
		"signed by a stranger":   {stranger.sign(t, claims(nil)), "signature"},
		"HMAC by the public key": {signed(t, jose.HS256, public, "k1", claims(nil)), "not a JWT"},
		"alg none":               {strings.Join(none, "."), "not a JWT"},
		"alg none, no signature": {none[0] + "." + none[1] + ".", "not a JWT"},
		"too long":               {with(map[string]any{"x": strings.Repeat("x", maxJWT)}), "longer than"},
		"no token":               {"", "not a JWT"},
		"malformed Kubernetes":   {with(map[string]any{"kubernetes.io": "no"}), "malformed"},
	} {
		got, err := Verify(test.token, noon, trusted)
		if test.want == "" {
			if err != nil || got.Audience != books || got.Kubernetes.Namespace != "team-b" || got.Kubernetes.Account.Name != "etl" || got.Kubernetes.Pod.Name != "etl-0" {
				t.Errorf("%s: %+v, %v", name, got, err)
			}
		} else if err == nil || !errors.Is(err, ErrUnknown) || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
	var unknown *UnknownKeyError
	if _, err := Verify(newIssuer(t, "k3", jose.ES256).sign(t, claims(nil)), noon, trusted); !errors.As(err, &unknown) || unknown.ID != "k3" {
		t.Errorf("an unknown key: %v", err)
	}
}

// TestVerifyChangedTokens flips each bit of a token: no change may be accepted, not even one of the signature's unused last bits.
func TestVerifyChangedTokens(t *testing.T) {
	t.Parallel()
	own := newIssuer(t, "k1", jose.ES256)
	trusted, good := trusts(t, jwks(t, own)), own.sign(t, claims(nil))
	want, err := Verify(good, noon, trusted)
	if err != nil {
		t.Fatal(err)
	}
	for bit := range 8 * len(good) {
		changed := []byte(good)
		changed[bit/8] ^= 1 << (bit % 8)
		if got, err := Verify(string(changed), noon, trusted); err == nil && (got.Audience != want.Audience || got.Subject != want.Subject || !got.Expires.Equal(want.Expires)) {
			t.Fatalf("bit %d flipped: %+v", bit, got)
		}
	}
}

func TestParseKeys(t *testing.T) {
	t.Parallel()
	own := newIssuer(t, "k1", jose.RS256)
	private, err := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{{Key: own.private, KeyID: "k1"}}})
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		string(jwks(t, own)): "", `{"keys":[]}`: "", "no": "want a JWKS", `{"keys":[{"kty":"oct","k":"c2VjcmV0","kid":"h"}]}`: `keys[0]: "h" is not a public key`,
		string(private): "is not a public key",
	} {
		if _, err := ParseKeys([]byte(text)); (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s: %v, want %q", text, err, want)
		}
	}
}

func FuzzVerify(f *testing.F) {
	own := newIssuer(f, "k1", jose.ES256)
	trusted, good := trusts(f, jwks(f, own)), own.sign(f, claims(nil))
	parts := strings.Split(good, ".")
	f.Add(good)
	f.Add("eyJhbGciOiJub25lIn0." + parts[1] + ".")
	f.Add("eyJhbGciOiJFUzI1NiIsImtpZCI6ImsxIn0.e30." + parts[2])
	f.Add("..")
	f.Fuzz(func(t *testing.T, token string) {
		claims, err := Verify(token, noon, trusted)
		if err == nil && (claims.Subject != "system:serviceaccount:team-b:etl" || claims.Audience != books) {
			t.Fatalf("forged: %+v", claims)
		}
		if err == nil && CheckJWT(token, books, noon) != nil {
			t.Fatalf("the object cache would not ask for a valid token: %v", CheckJWT(token, books, noon))
		}
		password := base64.StdEncoding.EncodeToString([]byte("anybody:" + token))
		if got, ok := FromHeaders([]string{"Basic " + password}); got != token || ok != (token != "") {
			t.Fatalf("in a header it is %q, %v", got, ok)
		}
		var key *UnknownKeyError
		if err != nil && !errors.Is(err, ErrUnknown) && !errors.As(err, &key) {
			t.Fatal(err)
		}
	})
}

func BenchmarkVerify(b *testing.B) {
	for _, alg := range []jose.SignatureAlgorithm{jose.RS256, jose.ES256} {
		b.Run(string(alg), func(b *testing.B) {
			own := newIssuer(b, "k1", alg)
			trusted, token := trusts(b, jwks(b, own)), own.sign(b, claims(nil))
			for b.Loop() {
				if _, err := Verify(token, noon, trusted); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
