// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package identity

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
)

// Tokens are the tokens of a token file, for use without a cluster.
type Tokens struct {
	identities map[[sha256.Size]byte]Identity
}

// ParseTokens parses a token file. Each line has a token and its namespace, which may have an account's name behind a slash, separated by
// space; empty lines and lines that begin with # are ignored.
func ParseTokens(text []byte) (Tokens, error) {
	t := Tokens{identities: map[[sha256.Size]byte]Identity{}}
	number := 0
	for line := range strings.Lines(string(text)) {
		number++
		fields := strings.Fields(line)
		if len(fields) == 0 || strings.HasPrefix(fields[0], "#") {
			continue
		}
		if len(fields) != 2 {
			return Tokens{}, fmt.Errorf("line %d: %d words, want two: TOKEN NAMESPACE or TOKEN NAMESPACE/ACCOUNT", number, len(fields))
		}
		key := sha256.Sum256([]byte(fields[0]))
		if _, twice := t.identities[key]; twice {
			return Tokens{}, fmt.Errorf("line %d: the token is there twice, want each once", number)
		}
		namespace, account, _ := strings.Cut(fields[1], "/")
		t.identities[key] = Identity{Namespace: namespace, Account: account}
	}
	if len(t.identities) == 0 {
		return Tokens{}, errors.New("no tokens: want lines of TOKEN NAMESPACE or TOKEN NAMESPACE/ACCOUNT")
	}
	return t, nil
}

// Static is a Reviewer of the tokens that a function returns; they may change between calls.
type Static func() Tokens

// Review looks the token up by its hash, so that the time it takes reveals nothing about valid tokens.
func (s Static) Review(_ context.Context, token string) (Identity, error) {
	identity, ok := s().identities[sha256.Sum256([]byte(token))]
	if !ok {
		return Identity{}, ErrUnknown
	}
	return identity, nil
}

// Has reports whether a token of this owner is in the file.
func (t Tokens) Has(owner Identity) bool {
	for _, known := range t.identities {
		if known == owner {
			return true
		}
	}
	return false
}
