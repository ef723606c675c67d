// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// maxJWT is the maximum length of a token that is reviewed. ServiceAccount tokens have about 1 KiB.
	maxJWT = 8 << 10
	// clockSkew is how long after its expiry a token is still sent to the API server, whose clock is authoritative.
	clockSkew = 2 * time.Minute
)

// audiences is the claim "aud": one string or a list (RFC 7519, section 4.1.3).
type audiences []string

// UnmarshalJSON accepts both forms.
func (a *audiences) UnmarshalJSON(text []byte) error {
	var one string
	if json.Unmarshal(text, &one) == nil {
		*a = audiences{one}
		return nil
	}
	return json.Unmarshal(text, (*[]string)(a))
}

// CheckJWT returns an ErrUnknown for a token that can't be a valid JWT for the audience: malformed, for another audience, or expired.
// It verifies no signature; its purpose is to spare the API server the review of tokens that are certainly invalid.
func CheckJWT(token, audience string, now time.Time) error {
	if len(token) > maxJWT {
		return fmt.Errorf("%w: longer than %d bytes", ErrUnknown, maxJWT)
	}
	parts := strings.Split(token, ".")
	if len(parts) != 3 || parts[2] == "" {
		return fmt.Errorf("%w: not a signed JWT", ErrUnknown)
	}
	if _, err := base64.RawURLEncoding.DecodeString(parts[2]); err != nil {
		return fmt.Errorf("%w: the JWT's signature is not base64url", ErrUnknown)
	}
	var header struct {
		Algorithm string `json:"alg"`
	}
	if err := decodePart(parts[0], &header); err != nil || header.Algorithm == "" || header.Algorithm == "none" {
		return fmt.Errorf("%w: no JWT header with an algorithm", ErrUnknown)
	}
	var claims struct {
		Audiences audiences `json:"aud"`
		Expires   float64   `json:"exp"` // Unix time; 0: never
	}
	if err := decodePart(parts[1], &claims); err != nil {
		return fmt.Errorf("%w: the JWT's claims are not JSON", ErrUnknown)
	}
	if !slices.Contains(claims.Audiences, audience) {
		return fmt.Errorf("%w: not for audience %q", ErrUnknown, audience)
	}
	if claims.Expires > 0 && float64(now.Add(-clockSkew).Unix()) > claims.Expires {
		return fmt.Errorf("%w: expired", ErrUnknown)
	}
	return nil
}

// Unverified returns the ID of the key and the issuer that a JWT names, without a check of its signature. ok is false for other tokens.
func Unverified(token string) (key, issuer string, ok bool) {
	first, rest, _ := strings.Cut(token, ".")
	second, _, _ := strings.Cut(rest, ".")
	var header struct {
		Key string `json:"kid"`
	}
	var claims struct {
		Issuer string `json:"iss"`
	}
	ok = decodePart(first, &header) == nil && decodePart(second, &claims) == nil
	return header.Key, claims.Issuer, ok
}

// decodePart decodes a base64url part of a JWT into a JSON object.
func decodePart(part string, into any) error {
	text, err := base64.RawURLEncoding.DecodeString(part)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, into)
}
