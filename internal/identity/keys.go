// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

const (
	// maxLife is the longest time that a token may be valid: one that is stolen should not work for long.
	maxLife = 24 * time.Hour
	// maxSkew is how far the clocks of issuers and of this machine may differ.
	maxSkew = time.Minute
)

// algorithms are the accepted signatures. HMAC is none of them: a public key would be its secret.
var algorithms = []jose.SignatureAlgorithm{
	jose.RS256, jose.RS384, jose.RS512, jose.PS256, jose.PS384, jose.PS512, jose.ES256, jose.ES384, jose.ES512, jose.EdDSA,
}

// Keys are the public keys of one issuer. Make them with ParseKeys; they may be shared.
type Keys struct{ set jose.JSONWebKeySet }

// ParseKeys parses a JWKS (RFC 7517). Only public keys for signatures are accepted.
func ParseKeys(text []byte) (Keys, error) {
	var k Keys
	if err := json.Unmarshal(text, &k.set); err != nil {
		return Keys{}, fmt.Errorf("want a JWKS: %w", err)
	}
	for i, key := range k.set.Keys {
		if !key.IsPublic() || !key.Valid() {
			return Keys{}, fmt.Errorf("keys[%d]: %q is not a public key of RSA, ECDSA or Ed25519", i, key.KeyID)
		}
	}
	return k, nil
}

// Empty reports whether there is no key.
func (k Keys) Empty() bool { return len(k.set.Keys) == 0 }

// Has reports whether a key has the ID.
func (k Keys) Has(id string) bool { return len(k.set.Key(id)) > 0 }

// UnknownKeyError says that a token is signed with a key that its issuer's Keys don't have, as right after the issuer has changed its key.
type UnknownKeyError struct{ ID string }

func (e *UnknownKeyError) Error() string { return fmt.Sprintf("key %.64q is unknown here yet", e.ID) }

// Claims are what a verified token says.
type Claims struct {
	Issuer     string    `json:"-"`
	Subject    string    `json:"-"`
	Audience   string    `json:"-"` // the only one
	Expires    time.Time `json:"-"`
	Kubernetes struct {  // of a ServiceAccount's token
		Namespace string `json:"namespace"`
		Account   struct {
			Name string `json:"name"`
		} `json:"serviceaccount"`
		Pod struct {
			Name string `json:"name"`
		} `json:"pod"`
	} `json:"kubernetes.io"`
	all map[string]any
}

// Has reports whether a claim is one of the values, or a list with one of them.
func (c Claims) Has(claim string, values map[string]bool) bool {
	switch got := c.all[claim].(type) {
	case string:
		return values[got]
	case []any:
		for _, each := range got {
			if text, ok := each.(string); ok && values[text] {
				return true
			}
		}
	}
	return false
}

// Verify checks a JWT without asking anyone: signature, exactly one audience, times, lifetime. issuer returns the keys of an issuer; its error
// is returned as it is. Other errors are ErrUnknown with the reason, or an *UnknownKeyError.
func Verify(token string, now time.Time, issuer func(url string) (Keys, error)) (Claims, error) {
	if len(token) > maxJWT {
		return Claims{}, unknown("longer than %d bytes", maxJWT)
	}
	parsed, err := jwt.ParseSigned(token, algorithms)
	if err != nil {
		return Claims{}, unknown("not a JWT with a signature by RSA, ECDSA or Ed25519")
	}
	var from struct {
		Issuer string `json:"iss"`
	}
	if err := parsed.UnsafeClaimsWithoutVerification(&from); err != nil {
		return Claims{}, unknown("its claims are not JSON")
	}
	keys, err := issuer(from.Issuer)
	if err != nil {
		return Claims{}, err
	}
	var std jwt.Claims
	var c Claims
	if err := keys.verify(parsed, &std, &c, &c.all); err != nil {
		return Claims{}, err
	}
	if len(std.Audience) != 1 {
		return Claims{}, unknown("it has %d audiences, want exactly one", len(std.Audience))
	}
	if err := checkTimes(std, now); err != nil {
		return Claims{}, err
	}
	c.Issuer, c.Subject, c.Audience, c.Expires = std.Issuer, std.Subject, std.Audience[0], std.Expiry.Time()
	return c, nil
}

// verify checks the signature of a token and decodes its claims.
func (k Keys) verify(token *jwt.JSONWebToken, claims ...any) error {
	id := token.Headers[0].KeyID
	matching := k.set.Key(id)
	if id == "" && len(k.set.Keys) == 1 {
		matching = k.set.Keys
	}
	if len(matching) == 0 {
		return &UnknownKeyError{id}
	}
	for _, key := range matching {
		if key.Algorithm != "" && key.Algorithm != token.Headers[0].Algorithm || key.Use != "" && key.Use != "sig" {
			continue
		}
		if token.Claims(key.Key, claims...) == nil {
			return nil
		}
	}
	return unknown("its signature is not of key %.64q, or its claims are malformed", id)
}

// checkTimes checks when a token begins and ends, and how long it is valid.
func checkTimes(c jwt.Claims, now time.Time) error {
	begin := c.IssuedAt
	if begin == nil {
		begin = c.NotBefore
	}
	if c.Expiry == nil || begin == nil {
		return unknown("it has no exp, or neither iat nor nbf")
	}
	expires, from := c.Expiry.Time(), begin.Time()
	if c.NotBefore != nil && *c.NotBefore > *begin {
		from = c.NotBefore.Time()
	}
	switch stamp := func(t time.Time) string { return t.UTC().Format(time.RFC3339) }; {
	case now.After(expires.Add(maxSkew)):
		return unknown("it expired %s, now %s", stamp(expires), stamp(now))
	case from.After(now.Add(maxSkew)):
		return unknown("it is valid from %s, now %s: do the clocks differ?", stamp(from), stamp(now))
	case expires.After(begin.Time().Add(maxLife)):
		return unknown("it is valid for %s, want at most %s", expires.Sub(begin.Time()), maxLife)
	}
	return nil
}

// unknown returns an ErrUnknown with the reason.
func unknown(format string, args ...any) error {
	return fmt.Errorf("%w: "+format, append([]any{ErrUnknown}, args...)...)
}
