// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package identity tells which namespace a bearer token speaks for.
package identity

import (
	"context"
	"errors"
	"strings"
)

// ErrUnknown says that a token is nobody's: malformed, expired, revoked, for another audience, or of a pod that is gone.
var ErrUnknown = errors.New("the token is not valid here")

// Identity is who a token speaks for.
type Identity struct {
	// Namespace of the ServiceAccount; empty for a user who is none.
	Namespace string
}

// Reviewer says whose a token is. An error that is not ErrUnknown means that nobody could say. Implementations may be used
// by many goroutines.
type Reviewer interface {
	Review(ctx context.Context, token string) (Identity, error)
}

// FromHeader takes the token out of an Authorization header; false if there is none. Space around the token goes: files that
// hold one often end in a newline.
func FromHeader(header string) (token string, ok bool) {
	scheme, rest, _ := strings.Cut(header, " ")
	token = strings.TrimSpace(rest)
	return token, strings.EqualFold(scheme, "Bearer") && token != ""
}

// OfUser reads the identity out of a Kubernetes user name, which is system:serviceaccount:NAMESPACE:NAME for a
// ServiceAccount (kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin).
func OfUser(name string) Identity {
	rest, ok := strings.CutPrefix(name, "system:serviceaccount:")
	if !ok {
		return Identity{}
	}
	namespace, _, _ := strings.Cut(rest, ":")
	return Identity{Namespace: namespace}
}
