// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package identity says whose a bearer token is.
package identity

import (
	"context"
	"encoding/base64"
	"errors"
	"regexp"
	"strings"
)

// ErrUnknown says that a token is not valid: it is malformed, expired, revoked, for another audience, or belongs to a deleted pod.
var ErrUnknown = errors.New("the token is not valid here")

// Identity is the owner of a token. Its JSON form is part of tickets.
type Identity struct {
	Namespace string `json:"n,omitempty"` // of the ServiceAccount; empty for other users
	Account   string `json:"a,omitempty"` // name of the ServiceAccount, or the subject of another issuer's token
	Pod       string `json:"p,omitempty"` // name of the pod that the token is bound to
	Job       string `json:"j,omitempty"` // the TrainJob that the token's audience names, in Namespace
	Issuer    string `json:"i,omitempty"` // of the token; empty for a static one
}

// maxName is the length of the longest Name: a namespace, a slash and a job.
const maxName = 63 + 1 + 63

// notInName matches what a Name leaves out of the subjects of other issuers.
var notInName = regexp.MustCompile(`[^A-Za-z0-9._:/-]`)

// Name is the job that the owner's streams count for: NAMESPACE/JOB, or NAMESPACE/ACCOUNT without a job; oidc:SUBJECT, shortened to the
// characters of job names, if the owner is in no namespace.
func (i Identity) Name() string {
	switch {
	case i.Namespace == "":
		name := notInName.ReplaceAllString("oidc:"+i.Account, "_")
		return name[:min(len(name), maxName)]
	case i.Job != "":
		return i.Namespace + "/" + i.Job
	}
	return i.Owner()
}

// Owner is NAMESPACE/ACCOUNT, or the account of an owner without a namespace.
func (i Identity) Owner() string {
	if i.Namespace == "" {
		return i.Account
	}
	return strings.TrimSuffix(i.Namespace+"/"+i.Account, "/")
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

// FromHeaders returns the token of a call's Authorization headers: a bearer token, or the password of Basic, whose user counts for nothing.
func FromHeaders(headers []string) (token string, ok bool) {
	if len(headers) != 1 {
		return "", false
	}
	if token, ok := FromHeader(headers[0]); ok {
		return token, true
	}
	scheme, rest, _ := strings.Cut(headers[0], " ")
	pair, err := base64.StdEncoding.DecodeString(strings.TrimSpace(rest))
	_, token, _ = strings.Cut(string(pair), ":")
	return token, strings.EqualFold(scheme, "Basic") && err == nil && token != ""
}

// OfUser parses a Kubernetes user name, which is system:serviceaccount:NAMESPACE:NAME for a ServiceAccount
// (kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin).
func OfUser(name string) Identity {
	rest, ok := strings.CutPrefix(name, "system:serviceaccount:")
	if !ok {
		return Identity{}
	}
	namespace, account, _ := strings.Cut(rest, ":")
	return Identity{Namespace: namespace, Account: account}
}
