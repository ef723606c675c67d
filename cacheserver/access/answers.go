// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package access

import (
	"crypto/sha256"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"github.com/kubeflow/datacache/internal/identity"
)

// maxAnswers bounds the number of tokens whose owners are kept.
const maxAnswers = 16384

// answers are the owners of tokens that were checked a short while ago. Only valid tokens are kept, so that made-up ones push out none.
// They are safe for concurrent use.
type answers struct {
	kept *lru.Cache[[sha256.Size]byte, answer] // by the token's hash, so that no tokens are kept in memory
}

type answer struct {
	who   identity.Identity
	until time.Time
}

func newAnswers() *answers {
	kept, _ := lru.New[[sha256.Size]byte, answer](maxAnswers) // it only fails for a size below 1
	return &answers{kept}
}

// of returns the owner of a token, checked now unless it was a short while ago.
func (a *answers) of(token string, now time.Time, check func() (identity.Identity, time.Time, error)) (identity.Identity, error) {
	key := sha256.Sum256([]byte(token))
	if known, ok := a.kept.Get(key); ok && now.Before(known.until) {
		return known.who, nil
	}
	who, until, err := check()
	if err == nil {
		a.kept.Add(key, answer{who, until})
	}
	return who, err
}
