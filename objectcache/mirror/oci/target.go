// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"encoding/base64"
	"encoding/json"
	"regexp"
	"strings"

	"github.com/kubeflow/datacache/objectcache/mirror/content"
)

// target is a parsed path of the distribution API (OCI distribution-spec v1.1, section "Endpoints").
type target struct {
	name      string // of the repository
	isBlob    bool   // a blob; otherwise a manifest
	reference string // tag or digest
	digest    content.Digest
	hasDigest bool // reference is a SHA-256 digest
}

var (
	goodName = regexp.MustCompile(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	goodTag  = regexp.MustCompile(`^[a-zA-Z0-9_][a-zA-Z0-9._-]{0,127}$`)
)

// parse parses a path of a manifest or blob. The names that it accepts need no encoding, so that no server resolves them differently.
func parse(encoded string) (t target, ok bool) {
	rest, ok := strings.CutPrefix(encoded, Prefix+"/")
	if !ok {
		return target{}, false
	}
	last := strings.LastIndexByte(rest, '/')
	if last < 0 {
		return target{}, false
	}
	t.reference = rest[last+1:]
	if t.name, ok = strings.CutSuffix(rest[:last], "/manifests"); !ok {
		t.name, t.isBlob = strings.CutSuffix(rest[:last], "/blobs")
		if !t.isBlob {
			return target{}, false
		}
	}
	if digits, isSHA256 := strings.CutPrefix(t.reference, "sha256:"); isSHA256 {
		t.digest, t.hasDigest = content.SHA256(digits)
	}
	isTag := !t.isBlob && goodTag.MatchString(t.reference)
	return t, goodName.MatchString(t.name) && len(t.name) <= 255 && (t.hasDigest || isTag)
}

// path is the path of a manifest or blob at any registry.
func (t target) path() string {
	what := "/manifests/"
	if t.isBlob {
		what = "/blobs/"
	}
	return Prefix + "/" + t.name + what + t.reference
}

// at is the target of the manifest with a digest in the same repository.
func (t target) at(reference string) (target, bool) {
	return parse(Prefix + "/" + t.name + "/manifests/" + reference)
}

// isClusterToken reports whether an Authorization header has a ServiceAccount token, which must not be sent to a registry. Registries'
// own tokens are JWTs too.
func isClusterToken(header string) bool {
	_, token, _ := strings.Cut(header, " ")
	parts := strings.Split(strings.TrimSpace(token), ".")
	if len(parts) != 3 {
		return false
	}
	text, err := base64.RawURLEncoding.DecodeString(strings.TrimRight(parts[1], "="))
	if err != nil {
		return false
	}
	var claims struct {
		Subject    string          `json:"sub"`
		Kubernetes json.RawMessage `json:"kubernetes.io"`
	}
	if err := json.Unmarshal(text, &claims); err != nil {
		return false
	}
	return claims.Kubernetes != nil || strings.HasPrefix(claims.Subject, "system:serviceaccount:")
}
