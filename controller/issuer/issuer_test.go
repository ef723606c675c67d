// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package issuer

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

// apiServer answers as an API server with one key; "" for one that can't be asked.
type apiServer struct {
	key   string
	asked int
}

func (a *apiServer) get(_ context.Context, path string) ([]byte, error) {
	switch {
	case a.key == "":
		return nil, errors.New("connection refused")
	case path == "/openid/v1/jwks":
		a.asked++
		return fmt.Appendf(nil, `{"keys":[{"kid":%q}]}`, a.key), nil
	}
	return []byte(`{"issuer":"https://cluster"}`), nil
}

// jwt returns a token without a signature that would be valid.
func jwt(key, issuer string) string {
	part := func(text string) string { return base64.RawURLEncoding.EncodeToString([]byte(text)) }
	return part(fmt.Sprintf(`{"kid":%q}`, key)) + "." + part(fmt.Sprintf(`{"iss":%q}`, issuer)) + ".c2lnbmVk"
}

// TestKeySource checks when keys are read, that the last ones stay while the API server can't be asked, and that the manager's own token tells
// whether they are the right ones.
func TestKeySource(t *testing.T) {
	t.Parallel()
	api, own, now := &apiServer{key: "k1"}, jwt("k1", "https://cluster"), time.Now()
	s := &Source{get: api.get, own: func() (string, error) { return own, nil }, now: func() time.Time { return now }}
	expect := func(what, key, problem string, asked int) {
		t.Helper()
		got := s.Current(t.Context())
		if !got.ids[key] || len(got.ids) != 1 || !strings.Contains(string(got.Issuer.Keys), key) || got.Issuer.URL != "https://cluster" {
			t.Errorf("%s: keys %+v, want %s", what, got, key)
		}
		if (got.Err == nil) != (problem == "") || got.Err != nil && !strings.Contains(got.Err.Error(), problem) {
			t.Errorf("%s: error %v, want %q", what, got.Err, problem)
		}
		if api.asked != asked {
			t.Errorf("%s: asked %d times, want %d", what, api.asked, asked)
		}
	}
	expect("at first", "k1", "", 1)
	now = now.Add(time.Minute)
	expect("a minute later", "k1", "", 1)
	now = now.Add(5 * time.Minute)
	expect("after five minutes", "k1", "", 2)

	api.key = "k2"
	if s.Lacks("k2") || s.Lacks("k1") || s.Lacks("") {
		t.Error("the keys are read again at once, or for a known key")
	}
	now = now.Add(11 * time.Second)
	if s.Lacks("k1") || !s.Lacks("k2") {
		t.Error("the keys are not read again for an unknown key, or for a known one")
	}
	expect("a token with a new key", "k2", "signed with the key k1, which its /openid/v1/jwks does not have", 3)
	own = jwt("k2", "https://other")
	now = now.Add(11 * time.Second)
	expect("another issuer", "k2", "issued by https://other, but its /.well-known/openid-configuration names https://cluster", 4)
	own = "a password"
	now = now.Add(11 * time.Second)
	expect("no JSON Web Token", "k2", "", 5)

	api.key, now = "", now.Add(time.Hour)
	expect("an API server that can't be asked", "k2", "connection refused", 5)
}

// TestManagersTokenStays has an API server redirect to another host.
func TestManagersTokenStays(t *testing.T) {
	t.Parallel()
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		t.Errorf("another host was asked for %s with Authorization %q", r.URL, r.Header.Get("Authorization"))
	}))
	t.Cleanup(other.Close)
	for _, status := range []int{301, 302, 303, 307, 308} {
		api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL+r.URL.Path, status) }))
		t.Cleanup(api.Close)
		config := &rest.Config{Host: api.URL, BearerToken: "secret"}
		client, err := rest.HTTPClientFor(config)
		if err != nil {
			t.Fatal(err)
		}
		s, err := New(config, client, time.Now)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Current(t.Context()).Err; err == nil || !strings.Contains(err.Error(), api.URL+" leads to "+other.URL+", which gets no credentials") {
			t.Errorf("%d: %v, want an error that names both hosts", status, err)
		}
	}
}
