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

	"github.com/kubeflow/datacache/internal/identity"
	"github.com/kubeflow/datacache/objectcache/mirror/rights"
)

// access is what a client may use at the hub.
type access struct {
	credential string // the Authorization header for the hub; empty: none
	namespace  string // of a cluster's token; empty: the client sent a token of the hub, or none
}

// isOwn reports whether the client acts with its own token at the hub, or with none.
func (a access) isOwn() bool { return a.namespace == "" }

// authenticate sets the access of the request. Tokens of the hub begin with hf_ and are passed on. Any other token is taken for one of the
// cluster: it is reviewed, its namespace's token is used at the hub, and it is never sent there.
func (c *call) authenticate() error {
	header := c.Header.Get("Authorization")
	if header == "" {
		return nil
	}
	token, ok := identity.FromHeader(header)
	if !ok {
		return rights.ErrToken
	}
	if strings.HasPrefix(token, "hf_") {
		c.access.credential = "Bearer " + token
		return nil
	}
	who, err := c.hub.o.Review(c.Request, token)
	switch {
	case errors.Is(err, identity.ErrUnknown) || err == nil && who.Namespace == "":
		return rights.ErrToken
	case err != nil:
		return fmt.Errorf("%w: %w", rights.ErrUnreviewed, err)
	}
	c.access.namespace = who.Namespace
	own, err := c.namespaceToken()
	if own != "" {
		c.access.credential = "Bearer " + own
	}
	return err
}

// namespaceToken reads the hub token of the namespace; empty if it has none.
func (c *call) namespaceToken() (string, error) {
	dir, namespace := c.cfg.Tokens, c.access.namespace
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

// check returns nil if the hub lets the client read the files of the target's repository.
func (c *call) check() error {
	return c.hub.rights.Check(c.Context(), c.access.credential, c.target.scope(), c.cfg.StaleIfError, func(ctx context.Context) error {
		r, err := c.request(ctx, http.MethodGet, c.target.authCheck(), nil)
		if err != nil {
			return err
		}
		d, err := c.hub.o.Upstream.Document(r)
		if err == nil {
			_ = d.Close() // only its status matters
		}
		return err
	})
}
