// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package arrow

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/controller/issuer"
	"github.com/kubeflow/datacache/controller/kube"
	"github.com/kubeflow/datacache/test/kit/cachetest"
)

// TestTokensUnverifiable checks what a cache of known readers is told, and says, when the API server signs tokens with a key that it does not
// publish, and when it is away: the condition says why, readers stay known, and the last keys stay.
func TestTokensUnverifiable(t *testing.T) {
	t.Parallel()
	var state atomic.Value // "away", or the ID of the published key
	state.Store("k2")
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch key := state.Load().(string); {
		case key == "away":
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Path == "/openid/v1/jwks":
			_, _ = fmt.Fprintf(w, `{"keys":[{"kid":%q}]}`, key)
		default:
			_, _ = fmt.Fprint(w, `{"issuer":"https://cluster"}`)
		}
	}))
	t.Cleanup(api.Close)
	part := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	own := part(`{"kid":"k1"}`) + "." + part(`{"iss":"https://cluster"}`) + ".c2lnbmVk"
	now := time.Now()
	keys, err := issuer.New(&rest.Config{Host: api.URL, BearerToken: own}, api.Client(), func() time.Time { return now })
	if err != nil {
		t.Fatal(err)
	}
	e := &Engine{
		Applier: kube.Applier{Client: fake.NewClientBuilder().WithScheme(schemeOf(t)).Build()}, Readers: v1alpha1.ReadersKnown, Keys: keys,
	}
	dc := cachetest.Minimal()
	for i, step := range []struct{ api, published, says string }{
		{"k2", "k2", "signed with the key k1, which its /openid/v1/jwks does not have"},
		{"k1", "k1", ""},
		{"away", "k1", "read who issues this cluster's tokens"},
		{"k1", "k1", ""},
	} {
		state.Store(step.api)
		now = now.Add(time.Hour)
		access, err := e.accessOf(t.Context(), dc)
		if err != nil {
			t.Fatal(err)
		}
		if access.Readers != v1alpha1.ReadersKnown || len(access.Issuers) != 1 || !strings.Contains(string(access.Issuers[0].Keys), step.published) {
			t.Errorf("%d: the servers are told %+v, want known readers and the key %s", i, access, step.published)
		}
		e.accesses.Store(client.ObjectKeyFromObject(dc), access)
		conditions := e.accessConditions(t.Context(), dc, nil, nil)
		known := meta.IsStatusConditionTrue(conditions, v1alpha1.ConditionReadersKnown)
		said := meta.FindStatusCondition(conditions, v1alpha1.ConditionTokensUnverifiable)
		if !known || (said != nil) != (step.says != "") || said != nil && !strings.Contains(said.Message, step.says) {
			t.Errorf("%d: the conditions are %+v, want ReadersKnown and %q", i, conditions, step.says)
		}
	}
}
