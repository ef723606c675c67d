// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package access

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/kubeflow/datacache/internal/identity"
)

// forbiddenError says that a token is valid, but its owner may not read.
type forbiddenError struct{ reason string }

func (e *forbiddenError) Error() string { return e.reason }

// identify returns whose a token is, and until when the answer may be used.
func (r *rules) identify(ctx context.Context, token string, now time.Time) (identity.Identity, time.Time, error) {
	if r.tokens != nil {
		if who, err := identity.Static(r.tokens.Get).Review(ctx, token); err == nil {
			return who, now.Add(identity.MaxAge), nil
		}
	}
	var from issuer
	claims, err := identity.Verify(token, now, func(url string) (keys identity.Keys, err error) {
		var known bool
		if from, known = r.issuers[url]; !known {
			return keys, fmt.Errorf("%w: this cache does not take tokens of issuer %.256q", identity.ErrUnknown, url)
		}
		return from.keys, nil
	})
	if err != nil {
		return identity.Identity{}, time.Time{}, err
	}
	who := identity.Identity{Issuer: claims.Issuer}
	if from.audience == "" {
		err = r.account(claims, &who)
	} else {
		err = from.user(claims, &who)
	}
	until := now.Add(identity.MaxAge)
	if claims.Expires.Before(until) {
		until = claims.Expires
	}
	return who, until, err
}

// account fills in the owner of a ServiceAccount's token.
func (r *rules) account(c identity.Claims, who *identity.Identity) error {
	job, err := r.jobOf(c.Audience)
	if err != nil {
		return err
	}
	named := identity.OfUser(c.Subject)
	if named.Namespace == "" || named.Namespace != c.Kubernetes.Namespace || named.Account != c.Kubernetes.Account.Name {
		return fmt.Errorf("%w: its subject %.256q is not the ServiceAccount of its claim kubernetes.io", identity.ErrUnknown, c.Subject)
	}
	who.Namespace, who.Account, who.Pod, who.Job = named.Namespace, named.Account, c.Kubernetes.Pod.Name, job
	return nil
}

// jobOf returns the job that an audience of this cache names, if it does.
func (r *rules) jobOf(audience string) (string, error) {
	for _, own := range r.audiences {
		rest, ok := strings.CutPrefix(audience, own)
		job, named := strings.CutPrefix(rest, "/trainjobs/")
		if !ok || rest != "" && (!named || job == "" || strings.Contains(job, "/")) {
			continue
		}
		if name, ok := r.jobs[job]; ok {
			job = name
		}
		return job, nil
	}
	return "", fmt.Errorf("%w: token is for %s, not %s", identity.ErrUnknown, cacheOf(audience), r.name())
}

// user fills in the owner of another provider's token.
func (i issuer) user(c identity.Claims, who *identity.Identity) error {
	if c.Audience != i.audience {
		return fmt.Errorf("%w: token is for audience %.256q, not %q", identity.ErrUnknown, c.Audience, i.audience)
	}
	who.Account = c.Subject
	if !c.Has(i.claim, i.values) {
		return &forbiddenError{fmt.Sprintf("%.256s may not read this cache: its claim %s has none of the values of access.issuers", c.Subject, i.claim)}
	}
	return nil
}

// permits returns why a reader may not read, nil if it may. It is also asked for the readers of tickets, under rules that may have changed
// since.
func (r *rules) permits(who identity.Identity) error {
	if !r.known {
		return nil
	}
	from, known := r.issuers[who.Issuer]
	switch {
	case who.Issuer == "":
		if r.tokens != nil && r.tokens.Get().Has(who) {
			return nil
		}
	case known && from.audience != "":
		if who.Namespace == "" {
			return nil
		}
	case known && (r.namespaces[all] || r.namespaces[who.Namespace]):
		if only := r.accounts[who.Namespace]; only == nil || only[who.Account] {
			return nil
		}
		return &forbiddenError{who.Owner() + " may not read this cache: ask its owner for access.accounts"}
	}
	return &forbiddenError{who.Owner() + " may not read this cache: ask its owner for access.namespaces"}
}

// mayWrite returns why a reader, nil for one that is not known, may not put, replace and drop datasets.
func (r *rules) mayWrite(who *identity.Identity) error {
	switch {
	case r.writers == nil:
		return nil
	case who == nil:
		return fmt.Errorf("%w: only known writers may put datasets, and the call has none", identity.ErrUnknown)
	case who.Namespace != "" && (r.writers[who.Namespace+"/*"] || r.writers[who.Owner()]):
		return nil
	}
	return &forbiddenError{who.Owner() + " may read this cache and not put datasets: ask its owner for spec.arrow.puts.writers (writers of the file --access)"}
}

// name is the cache's name, as far as the audiences tell it.
func (r *rules) name() string {
	if len(r.audiences) == 0 {
		return "this cache"
	}
	return cacheOf(r.audiences[0])
}

// cacheOf returns the name of the cache in an audience of ours, and other audiences as they are.
func cacheOf(audience string) string {
	_, name, ok := strings.Cut(audience, "/datacaches/")
	if !ok || !strings.HasPrefix(audience, "datacache.kubeflow.org/") {
		return fmt.Sprintf("%.256q", audience)
	}
	name, _, _ = strings.Cut(name, "/")
	return fmt.Sprintf("%.256s", name)
}
