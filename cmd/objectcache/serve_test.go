// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestObjectCacheFlagsAreChecked(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		args string
		want string
	}{
		"no folder":              {"--buckets b", "--dir: missing"},
		"no buckets":             {"--dir d", "--buckets: missing"},
		"no namespace":           {"--dir d --buckets b", "--namespace: missing"},
		"no objects":             {"--dir d --buckets b --max-objects 0", "--max-objects: 0"},
		"all must be free":       {"--dir d --buckets b --min-free 1", "--min-free: 1"},
		"parts of no size":       {"--dir d --buckets b --namespace n --part-size -1", "--part-size: \"-1\""},
		"a key alone":            {"--dir d --buckets b --namespace n --tls-key k", "--tls-cert: missing"},
		"a certificate alone":    {"--dir d --buckets b --namespace n --tls-cert c --tls-key k", "--tls-ca: missing"},
		"two certificates":       {"--dir d --buckets b --namespace n --tls-authority a --tls-authority-secret s", "want one of them"},
		"nothing is answered":    {"--dir d --buckets b --namespace n --plain-text=false", "--plain-text: false, without TLS"},
		"a Secret, no cluster":   {"--dir d --buckets b --standalone --tokens t --tls-authority-secret s", "--tls-authority-secret: is not for --standalone"},
		"no tokens":              {"--dir d --buckets b --standalone", "--tokens: missing"},
		"tokens in a cluster":    {"--dir d --buckets b --namespace n --tokens t", "for --standalone"},
		"peers in a cluster":     {"--dir d --buckets b --namespace n --peer a=b:1", "for --standalone"},
		"peers twice":            {"--dir d --buckets b --standalone --tokens t --name a --peer a=c:1 --peers p", "--peer and --peers: both"},
		"an xDS key alone":       {"--dir d --buckets b --namespace n --xds-tls-key k", "--xds: missing"},
		"an xDS key, no cert":    {"--dir d --buckets b --namespace n --xds :1 --xds-tls-key k", "--xds-tls-cert: missing"},
		"an xDS cert alone":      {"--dir d --buckets b --namespace n --xds :1 --xds-tls-cert c", "--xds-tls-key: missing"},
		"Envoys without address": {"--dir d --buckets b --namespace n --xds :1 --xds-envoy :10000", `--xds-envoy: ":10000"`},
		"TLS at Envoys alone":    {"--dir d --buckets b --namespace n --xds :1 --xds-envoy-cert c", "--tls-cert: missing"},
		"not among its peers":    {"--dir d --buckets b --standalone --tokens t --name a --peer b=c:1", `not this one, which is "a"`},
		"a stray word":           {"d", "unknown command"},
		"a file that isn't here": {"--dir d --buckets /no/such/file --standalone --tokens t", "--buckets: open /no/such/file"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := root(func(string) string { return "" })
			cmd.SetArgs(strings.Fields(test.args))
			err := cmd.ExecuteContext(t.Context())
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q in it", err, test.want)
			}
		})
	}
}
