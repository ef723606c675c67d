// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/objectcache/mirror/hub"
	"github.com/kubeflow/datacache/objectcache/mirror/oci"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]Config{
		"hub: {upstream: 'https://hub.example/', bucket: models, tokens: /t}": {
			Hub:    hub.Config{Upstream: "https://hub.example", Bucket: "models", Tokens: "/t", StaleIfError: 24 * time.Hour},
			Images: oci.Config{StaleIfError: 24 * time.Hour},
		},
		`{"staleIfError": "0s", "images": {"bucket": "images", "registries": [{"name": "a.example"}, {"name": "b", "upstream": "http://c:5000"}]}}`: {
			Images: oci.Config{Bucket: "images", Registries: map[string]string{"a.example": "https://a.example", "b": "http://c:5000"}},
		},
	} {
		got, err := Parse([]byte(text))
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", text, err, diff)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                                      "neither hub nor images",
		"huh: {}":                               "huh",
		"hub: {upstream: x, bucket: b}":         `hub.upstream: "x"`,
		"hub: {upstream: 'ftp://x', bucket: b}": `hub.upstream: "ftp://x"`,
		"hub: {upstream: 'https://x'}":          "hub.bucket: empty",
		"hub: {bucket: b}":                      `hub.upstream: ""`,
		"images: {registries: [{name: a}]}":     "images.bucket: empty",
		"images: {bucket: b}":                   "images.registries: empty",
		"images: {bucket: b, registries: [{upstream: 'https://a'}]}":   "images.registries[0].name: empty",
		"images: {bucket: b, registries: [{name: a, upstream: 'a'}]}":  `images.registries[0].upstream: "a"`,
		"{staleIfError: -1h, hub: {upstream: 'https://x', bucket: b}}": `staleIfError: "-1h"`,
		"{staleIfError: 1, hub: {upstream: 'https://x', bucket: b}}":   `staleIfError: "1"`,
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q in it", text, err, want)
		}
	}
}
