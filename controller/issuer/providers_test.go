// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package issuer

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/workload"
)

// ed25519 is a set of one public key (RFC 8037, appendix A.2).
const ed25519 = `{"keys": [{"kty":"OKP","crv":"Ed25519","kid":"s1","x":"11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"}]}`

// TestAll checks which issuers servers are told of. They use none of a file with one that is wrong, so it is left out, and the error says why.
func TestAll(t *testing.T) {
	t.Parallel()
	own := workload.Issuer{URL: "https://cluster", Keys: json.RawMessage(`{}`)}
	sso := v1alpha1.Issuer{URL: "https://sso.example.com", Keys: ed25519, Audience: "datacache", Claim: "groups", Values: []string{"ml"}}
	written := workload.Issuer{URL: sso.URL, Keys: json.RawMessage(sso.Keys), Audience: "datacache", Claim: "groups", Values: []string{"ml"}}
	but := func(edit func(*v1alpha1.Issuer)) v1alpha1.Issuer {
		other := sso
		other.URL = "https://other.example.com"
		edit(&other)
		return other
	}
	for wrong, second := range map[string]v1alpha1.Issuer{
		"":                                        but(func(*v1alpha1.Issuer) {}),
		"access.issuers[1].url: \"https://[\"":    but(func(i *v1alpha1.Issuer) { i.URL = "https://[" }),
		"is this cluster's own issuer":            but(func(i *v1alpha1.Issuer) { i.URL = own.URL }),
		"access.issuers[1].keys: want a JWKS":     but(func(i *v1alpha1.Issuer) { i.Keys = "-----BEGIN PUBLIC KEY-----" }),
		"access.issuers[1].keys: no key is in it": but(func(i *v1alpha1.Issuer) { i.Keys = `{"keys": []}` }),
		"is not a public key":                     but(func(i *v1alpha1.Issuer) { i.Keys = `{"keys": [{"kty":"oct","kid":"h","k":"c2VjcmV0"}]}` }),
	} {
		got, err := All(own, []v1alpha1.Issuer{sso, second})
		want := []workload.Issuer{own, written}
		if wrong == "" {
			other := written
			other.URL = second.URL
			want = append(want, other)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("with %q: issuers (-want +got):\n%s", wrong, diff)
		}
		if (err == nil) != (wrong == "") || err != nil && !strings.Contains(err.Error(), wrong) {
			t.Errorf("%v, want %q", err, wrong)
		}
	}
	if got, err := All(workload.Issuer{}, []v1alpha1.Issuer{sso}); err != nil || len(got) != 1 || got[0].URL != sso.URL {
		t.Errorf("without the cluster's keys: %+v, %v", got, err)
	}
}
