// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package issuer reads the keys of a cluster's ServiceAccounts, with which tokens are checked.
package issuer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	"github.com/kubeflow/datacache/controller/workload"
	"github.com/kubeflow/datacache/internal/identity"
	"github.com/kubeflow/datacache/internal/origin"
)

const (
	// keysAge is how long a key set is used before it is read anew.
	keysAge = 5 * time.Minute
	// keysPause is the minimum time between two requests for the key set while heads receive tokens of unknown keys.
	keysPause = 10 * time.Second
	// keysTimeout bounds such a request.
	keysTimeout = 10 * time.Second
)

// Source reads the keys with which the API server's tokens of ServiceAccounts are checked, and keeps them. It is safe for concurrent use.
type Source struct {
	get func(ctx context.Context, path string) ([]byte, error) // from the API server
	own func() (token string, err error)                       // the manager's own token; "" if it has none
	now func() time.Time

	mu    sync.Mutex
	keys  Keys
	asked time.Time // the last request; zero: read the keys anew
}

// Keys are the keys of a cluster's ServiceAccounts.
type Keys struct {
	Issuer workload.Issuer // without a URL: not known
	ids    map[string]bool // of the keys
	Err    error           // why tokens can't be checked
}

// New returns a source that asks the API server of the configuration.
func New(config *rest.Config, client *http.Client, now func() time.Time) (*Source, error) {
	within := *client
	within.Transport = origin.Transport{Base: client.Transport} // client-go adds the manager's token to redirected requests too
	api, err := discovery.NewDiscoveryClientForConfigAndClient(config, &within)
	if err != nil {
		return nil, fmt.Errorf("set up the client for the API server's keys: %w", err)
	}
	get := func(ctx context.Context, path string) ([]byte, error) {
		ctx, cancel := context.WithTimeout(ctx, keysTimeout)
		defer cancel()
		return api.RESTClient().Get().AbsPath(path).DoRaw(ctx)
	}
	own := func() (string, error) {
		if config.BearerTokenFile == "" {
			return config.BearerToken, nil
		}
		text, err := os.ReadFile(config.BearerTokenFile)
		return strings.TrimSpace(string(text)), err
	}
	return &Source{get: get, own: own, now: now}, nil
}

// Current returns the keys, read within keysAge. If they can't be read, the last ones stay, with the error.
func (s *Source) Current(ctx context.Context) Keys {
	s.mu.Lock()
	defer s.mu.Unlock()
	if now := s.now(); s.asked.IsZero() || now.Sub(s.asked) >= keysAge || s.keys.Err != nil && now.Sub(s.asked) >= keysPause {
		keys, err := s.read(ctx)
		if err == nil {
			s.keys = keys
		}
		s.keys.Err, s.asked = err, now
		if err == nil {
			s.keys.Err = s.checkOwn()
		}
	}
	return s.keys
}

// Lacks reports whether no key has the ID. The next Current then reads them anew, at most once in keysPause.
func (s *Source) Lacks(id string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if id == "" || s.keys.ids[id] || s.now().Sub(s.asked) < keysPause {
		return false
	}
	s.asked = time.Time{}
	return true
}

// read reads the keys from the API server.
func (s *Source) read(ctx context.Context) (Keys, error) {
	text, err := s.get(ctx, "/.well-known/openid-configuration")
	if err != nil {
		return Keys{}, fmt.Errorf("read who issues this cluster's tokens: %w", err)
	}
	var document struct {
		Issuer string `json:"issuer"`
	}
	if err := json.Unmarshal(text, &document); err != nil || document.Issuer == "" {
		return Keys{}, errors.New("the API server's /.well-known/openid-configuration names no issuer")
	}
	if text, err = s.get(ctx, "/openid/v1/jwks"); err != nil {
		return Keys{}, fmt.Errorf("read the keys of this cluster's tokens: %w", err)
	}
	var set struct {
		Keys []struct {
			ID string `json:"kid"`
		} `json:"keys"`
	}
	if err := json.Unmarshal(text, &set); err != nil || len(set.Keys) == 0 {
		return Keys{}, errors.New("the API server's /openid/v1/jwks has no keys")
	}
	keys := Keys{Issuer: workload.Issuer{URL: document.Issuer, Keys: bytes.TrimSpace(text)}, ids: map[string]bool{}}
	for _, key := range set.Keys {
		keys.ids[key.ID] = true
	}
	return keys, nil
}

// checkOwn returns an error if the key set can't check the manager's own token, because it lacks the key or is of another issuer. It then can't
// check those of readers either.
func (s *Source) checkOwn() error {
	token, err := s.own()
	if err != nil {
		return fmt.Errorf("read the manager's own token: %w", err)
	}
	key, from, isToken := identity.Unverified(token)
	switch issuer := s.keys.Issuer.URL; {
	case !isToken: // another kind of credential
	case from != issuer:
		return fmt.Errorf("this cluster's tokens are issued by %s, but its /.well-known/openid-configuration names %s", from, issuer)
	case !s.keys.ids[key]:
		return fmt.Errorf("this cluster's tokens are signed with the key %s, which its /openid/v1/jwks does not have", key)
	}
	return nil
}
