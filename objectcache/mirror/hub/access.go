// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"github.com/kubeflow/datacache/objectcache/identity"
	"github.com/kubeflow/datacache/objectcache/mirror/rights"
)

// access is what a client may use at the hub.
type access struct {
	credential string // the Authorization header for the hub; empty: none
	namespace  string // of a cluster's token; empty: the client sent a token of the hub, or none
}

// isOwn reports whether the client acts with its own token at the hub, or with none.
func (a access) isOwn() bool { return a.namespace == "" }

// accessOf returns the access of a request. Tokens of the hub begin with hf_ and are passed on. Any other token is taken for one of the
// cluster: it is reviewed, its namespace's token is used at the hub, and it is never sent there.
func (h *Hub) accessOf(r *http.Request) (access, error) {
	header := r.Header.Get("Authorization")
	if header == "" {
		return access{}, nil
	}
	token, ok := identity.FromHeader(header)
	if !ok {
		return access{}, rights.ErrToken
	}
	if strings.HasPrefix(token, "hf_") {
		return access{credential: "Bearer " + token}, nil
	}
	who, err := h.review(r, token)
	switch {
	case errors.Is(err, identity.ErrUnknown) || err == nil && who.Namespace == "":
		return access{}, rights.ErrToken
	case err != nil:
		return access{}, fmt.Errorf("%w: %w", rights.ErrUnreviewed, err)
	}
	own, err := h.namespaceToken(who.Namespace)
	if err != nil {
		return access{}, err
	}
	a := access{namespace: who.Namespace}
	if own != "" {
		a.credential = "Bearer " + own
	}
	return a, nil
}

// namespaceToken reads the hub token of a namespace; empty if it has none.
func (h *Hub) namespaceToken(namespace string) (string, error) {
	dir := h.cfg().Tokens
	if dir == "" || namespace != filepath.Base(namespace) || strings.HasPrefix(namespace, ".") {
		return "", nil
	}
	text, err := os.ReadFile(filepath.Join(dir, namespace))
	if errors.Is(err, os.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("the token of namespace %s: %w", namespace, err)
	}
	return strings.TrimSpace(string(text)), nil
}

// check returns nil if the hub lets a client read the files of a target's repository.
func (h *Hub) check(ctx context.Context, a access, t target) error {
	return h.rights.Check(ctx, a.credential, t.scope(), h.cfg().StaleIfError, func(ctx context.Context) error {
		r, err := h.request(ctx, http.MethodGet, t.authCheck(), a.credential, nil)
		if err != nil {
			return err
		}
		d, err := h.upstream.Document(r)
		if err == nil {
			_ = d.Close() // only its status matters
		}
		return err
	})
}
