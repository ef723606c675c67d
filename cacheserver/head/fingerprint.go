// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// fingerprintOf returns the first 16 bytes, in hex, of the SHA-256 of a value's JSON. Equal values have equal fingerprints in every
// process and release as long as their JSON is the same.
func fingerprintOf(value any) (string, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("fingerprint %T: %w", value, err)
	}
	digest := sha256.Sum256(text)
	return hex.EncodeToString(digest[:16]), nil
}
