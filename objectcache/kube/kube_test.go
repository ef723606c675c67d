// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/kubeflow/datacache/internal/identity"
)

// TestOnlyPlausibleTokensAreReviewed counts the requests that the API server receives.
func TestOnlyPlausibleTokensAreReviewed(t *testing.T) {
	t.Parallel()
	var reviews atomic.Int64
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		reviews.Add(1)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusCreated)
		fmt.Fprint(w, `{"apiVersion":"authentication.k8s.io/v1","kind":"TokenReview","status":{"authenticated":true,`+
			`"audiences":["ours"],"user":{"username":"system:serviceaccount:team-a:worker"}}}`)
	}))
	t.Cleanup(api.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`{"clusters":[{"name":"c","cluster":{"server":%q}}],"contexts":[{"name":"c","context":{"cluster":"c"}}],"current-context":"c"}`, api.URL)
	if err := os.WriteFile(kubeconfig, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	client, err := New(Config{Kubeconfig: kubeconfig, Audience: "ours"})
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range []string{"secret", "a.b.c", "github_pat_0123456789"} {
		if _, err := client.Review(t.Context(), token); !errors.Is(err, identity.ErrUnknown) {
			t.Errorf("%s: %v, want %v", token, err, identity.ErrUnknown)
		}
	}
	if n := reviews.Load(); n != 0 {
		t.Errorf("%d reviews of tokens that are no JWTs", n)
	}
	encode := base64.RawURLEncoding.EncodeToString
	token := encode([]byte(`{"alg":"RS256"}`)) + "." + encode([]byte(`{"aud":["ours"]}`)) + "." + encode([]byte("signature"))
	if who, err := client.Review(t.Context(), token); err != nil || who.Namespace != "team-a" || reviews.Load() != 1 {
		t.Errorf("%+v, %v after %d reviews, want team-a after one", who, err, reviews.Load())
	}
}
