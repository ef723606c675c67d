// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"encoding/base64"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestInvalidTokensAreLimitedBySource(t *testing.T) {
	t.Parallel()
	o := &oracle{err: ErrUnknown}
	l := NewLimiter(o)
	now := time.Now()
	l.now = func() time.Time { return now }
	c := NewCache(l)
	attacker, other := WithSource(t.Context(), "10.0.0.1"), WithSource(t.Context(), "10.0.0.2")
	for i := range 200 {
		want := ErrUnknown
		if i >= rejectedBurst {
			want = ErrTooMany
		}
		if _, err := c.Review(attacker, fmt.Sprint("invalid ", i)); !errors.Is(err, want) {
			t.Fatalf("token %d: %v, want %v", i, err, want)
		}
	}
	if o.times() != rejectedBurst {
		t.Errorf("%d reviews, want %d", o.times(), rejectedBurst)
	}
	if _, err := c.Review(other, "invalid"); !errors.Is(err, ErrUnknown) {
		t.Errorf("from another source: %v, want %v", err, ErrUnknown)
	}
	now = now.Add(time.Second)
	asked := o.times()
	for i := range 200 {
		_, _ = c.Review(attacker, fmt.Sprint("invalid again ", i))
	}
	if got := o.times() - asked; got != rejectedRate {
		t.Errorf("%d reviews a second later, want %d", got, rejectedRate)
	}
}

func TestValidTokensAreNotLimited(t *testing.T) {
	t.Parallel()
	l := NewLimiter(&oracle{})
	ctx := WithSource(t.Context(), "10.0.0.1")
	for i := range 10 * rejectedBurst {
		if _, err := l.Review(ctx, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSourcesAreBounded(t *testing.T) {
	t.Parallel()
	l := NewLimiter(&oracle{err: ErrUnknown})
	for i := range maxSources + 100 {
		_, _ = l.Review(WithSource(t.Context(), fmt.Sprint(i)), "invalid")
	}
	if n := l.sources.Len(); n > maxSources {
		t.Errorf("%d sources are kept, want at most %d", n, maxSources)
	}
}

func unsignedJWT(header, claims, signature string) string {
	encode := base64.RawURLEncoding.EncodeToString
	return encode([]byte(header)) + "." + encode([]byte(claims)) + "." + encode([]byte(signature))
}

func TestCheckJWT(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_000_000, 0)
	const header, claims = `{"alg":"RS256","kid":"x"}`, `{"aud":["other","ours"],"exp":1000000}`
	for name, test := range map[string]struct {
		token string
		good  bool
	}{
		"of a list of audiences":   {unsignedJWT(header, claims, "signature"), true},
		"of one audience":          {unsignedJWT(header, `{"aud":"ours"}`, "signature"), true},
		"expired within the skew":  {unsignedJWT(header, `{"aud":"ours","exp":999900}`, "signature"), true},
		"expired":                  {unsignedJWT(header, `{"aud":"ours","exp":999000}`, "signature"), false},
		"of another audience":      {unsignedJWT(header, `{"aud":["theirs"],"exp":1000000}`, "signature"), false},
		"of no audience":           {unsignedJWT(header, `{"exp":1000000}`, "signature"), false},
		"without a signature":      {unsignedJWT(header, claims, ""), false},
		"of algorithm none":        {unsignedJWT(`{"alg":"none"}`, claims, "signature"), false},
		"without an algorithm":     {unsignedJWT(`{}`, claims, "signature"), false},
		"of two parts":             {"abc.def", false},
		"of four parts":            {unsignedJWT(header, claims, "signature") + ".x", false},
		"one word":                 {"secret", false},
		"empty":                    {"", false},
		"claims that are no JSON":  {unsignedJWT(header, "claims", "signature"), false},
		"a header that is no JSON": {unsignedJWT("header", claims, "signature"), false},
		"bad base64":               {strings.Replace(unsignedJWT(header, claims, "signature"), ".", ".!", 1), false},
		"too long":                 {unsignedJWT(header, claims, strings.Repeat("s", maxJWT)), false},
	} {
		err := CheckJWT(test.token, "ours", now)
		if (err == nil) != test.good || err != nil && !errors.Is(err, ErrUnknown) {
			t.Errorf("%s: %v, want good = %v", name, err, test.good)
		}
	}
}
