// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package identity maps bearer tokens to namespaces.
package identity

import (
	"context"
	"errors"
	"strings"
)

// ErrUnknown says that a token is not valid: it is malformed, expired, revoked, for another audience, or belongs to a deleted pod.
var ErrUnknown = errors.New("the token is not valid here")

// Identity is the owner of a token.
type Identity struct {
	// Namespace of the ServiceAccount; empty for other users.
	Namespace string
}

// Reviewer authenticates tokens. An error other than ErrUnknown means that it could not decide. Implementations must be safe for
// concurrent use.
type Reviewer interface {
	Review(ctx context.Context, token string) (Identity, error)
}

// FromHeader returns the token of an Authorization header; ok is false if there is none. It trims white space around the token, since
// token files often end in a newline.
func FromHeader(header string) (token string, ok bool) {
	scheme, rest, _ := strings.Cut(header, " ")
	token = strings.TrimSpace(rest)
	return token, strings.EqualFold(scheme, "Bearer") && token != ""
}

// OfUser parses a Kubernetes user name, which is system:serviceaccount:NAMESPACE:NAME for a ServiceAccount
// (kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin).
func OfUser(name string) Identity {
	rest, ok := strings.CutPrefix(name, "system:serviceaccount:")
	if !ok {
		return Identity{}
	}
	namespace, _, _ := strings.Cut(rest, ":")
	return Identity{Namespace: namespace}
}
