// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package issuer

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/workload"
	"github.com/kubeflow/datacache/internal/identity"
)

// All returns the issuers whose tokens a cache takes: the cluster's own, unless its URL is empty since it is not known, and the OpenID providers
// of access.issuers. A provider that servers could not use is left out, as they would use none of the file then; the error says why.
func All(own workload.Issuer, providers []v1alpha1.Issuer) (all []workload.Issuer, err error) {
	if own.URL != "" {
		all = append(all, own)
	}
	var wrong []error
	for i, p := range providers {
		if err := check(own.URL, p); err != nil {
			wrong = append(wrong, fmt.Errorf("access.issuers[%d].%w", i, err))
			continue
		}
		all = append(all, workload.Issuer{URL: p.URL, Keys: json.RawMessage(p.Keys), Audience: p.Audience, Claim: p.Claim, Values: p.Values})
	}
	return all, errors.Join(wrong...)
}

func check(own string, p v1alpha1.Issuer) error {
	if u, err := url.Parse(p.URL); err != nil || u.Host == "" {
		return fmt.Errorf("url: %q, want the claim iss of its tokens, such as https://sso.example.com", p.URL)
	}
	if p.URL == own {
		return fmt.Errorf("url: %q is this cluster's own issuer, whose tokens are checked anyway: leave it out", p.URL)
	}
	keys, err := identity.ParseKeys([]byte(p.Keys))
	if err != nil {
		return fmt.Errorf("keys: %w", err)
	}
	if keys.Empty() {
		return errors.New("keys: no key is in it, want the answer of the provider's jwks_uri")
	}
	return nil
}
