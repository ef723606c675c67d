// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package content

import (
	"crypto/sha1" //nolint:gosec // Git names its objects so
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
)

// Digest identifies content. Its zero value identifies none.
type Digest struct {
	algorithm, hex string
}

const (
	bySHA256 = "sha256"
	byGit    = "git"
)

// SHA256 returns the Digest with a SHA-256 of 64 lower-case hexadecimal digits.
func SHA256(digits string) (Digest, bool) { return parse(bySHA256, digits, sha256.Size) }

// GitBlob returns the Digest with the name of a Git blob, which is the SHA-1 of a header with the length and the content
// (git-scm.com/book/en/v2/Git-Internals-Git-Objects).
func GitBlob(digits string) (Digest, bool) { return parse(byGit, digits, sha1.Size) }

func parse(algorithm, digits string, size int) (Digest, bool) {
	if len(digits) != 2*size {
		return Digest{}, false
	}
	for _, c := range []byte(digits) {
		if (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return Digest{}, false
		}
	}
	return Digest{algorithm: algorithm, hex: digits}, true
}

// String returns the prefix of the keys of the content's blocks.
func (d Digest) String() string { return d.algorithm + "/" + d.hex }

// newHash returns the hash that yields the Digest of size bytes of content.
func (d Digest) newHash(size int64) hash.Hash {
	if d.algorithm == byGit {
		h := sha1.New()                            //nolint:gosec // Git names its objects so
		_, _ = fmt.Fprintf(h, "blob %d\x00", size) // writing to a hash never fails
		return h
	}
	return sha256.New()
}

// matches reports whether a finished hash yields the Digest.
func (d Digest) matches(h hash.Hash) bool { return hex.EncodeToString(h.Sum(nil)) == d.hex }
