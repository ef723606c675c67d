// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package head

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// fingerprintOf is a short, stable name of a value: the first 16 bytes of the SHA-256 of its JSON form, in hex.
// Equal values give equal fingerprints in every process and release as long as their JSON form stays.
func fingerprintOf(value any) (string, error) {
	text, err := json.Marshal(value)
	if err != nil {
		return "", fmt.Errorf("fingerprint %T: %w", value, err)
	}
	digest := sha256.Sum256(text)
	return hex.EncodeToString(digest[:16]), nil
}
