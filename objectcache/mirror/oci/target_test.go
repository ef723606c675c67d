// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"encoding/base64"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	t.Parallel()
	digest := "sha256:" + strings.Repeat("a", 64)
	for path, want := range map[string]target{
		"/v2/app/manifests/v1.0_x":                      {name: "app", reference: "v1.0_x"},
		"/v2/acme/a-b__c.d/manifests/" + digest:         {name: "acme/a-b__c.d", reference: digest, hasDigest: true},
		"/v2/acme/blobs/blobs/" + digest:                {name: "acme/blobs", reference: digest, hasDigest: true, isBlob: true},
		"/v2/acme/manifests/manifests/manifests/latest": {name: "acme/manifests/manifests", reference: "latest"},
	} {
		got, ok := parse(path)
		if got.digest.String() != "/" && got.path() != path {
			t.Errorf("%s: its path is %s", path, got.path())
		}
		want.digest = got.digest
		if !ok || got != want {
			t.Errorf("%s: %+v, %v, want %+v", path, got, ok, want)
		}
	}
	for _, path := range []string{
		"/v2", "/v2/", "/v2/app", "/v2/app/tags/list", "/v2/manifests/v1", "/v2//app/manifests/v1", "/v2/app//manifests/v1", "/v2/../app/manifests/v1", "/v2/app/../b/manifests/v1",
		"/v2/app%2fb/manifests/v1", "/v2/APP/manifests/v1", "/v2/app/manifests/..", "/v2/app/manifests/", "/v2/app/manifests/a%2fb", "/v2/app/blobs/v1",
		"/v2/app/blobs/sha256:" + strings.Repeat("A", 64), "/v2/app/blobs/sha256:aa", "/v2/app/blobs/sha512:" + strings.Repeat("a", 128), "/v2/app/blobs/uploads/x",
	} {
		if got, ok := parse(path); ok {
			t.Errorf("%s: %+v, want a refusal", path, got)
		}
	}
}

func TestClusterTokens(t *testing.T) {
	t.Parallel()
	jwt := func(claims string) string {
		encode := base64.RawURLEncoding.EncodeToString
		return "Bearer " + encode([]byte(`{"alg":"RS256"}`)) + "." + encode([]byte(claims)) + "." + encode([]byte("signature"))
	}
	for header, want := range map[string]bool{
		jwt(`{"kubernetes.io": {"namespace": "a"}}`):           true,
		jwt(`{"sub": "system:serviceaccount:team-a:default"}`): true,
		jwt(`{"sub": "someone", "access": []}`):                false, // a registry's own
		"Bearer abc":                                           false, "Basic YTpi": false, "": false, "Bearer a.b.c": false,
	} {
		if got := isClusterToken(header); got != want {
			t.Errorf("%.80s: %v, want %v", header, got, want)
		}
	}
}
