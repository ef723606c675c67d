// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"sync"

	"github.com/kubeflow/datacache/internal/origin"
	"github.com/kubeflow/datacache/objectcache/mirror/upstream"
)

// Most registries want a Bearer token, which a client gets from the token server that the registry's challenge names, the realm, for the
// user's credentials or for none (distribution, docs/content/spec/auth/token.md). Tokens are different for each pull, so the consent to one
// says nothing about the next. Therefore the mirror names itself as the realm, passes the client's request on to the real one, and returns
// a pass: the realm's token, and whose it is. Consents are remembered for the user then, and while the realm is down, the mirror still
// knows who asks.

const (
	// tokenPath is where clients get passes. Its query has ns, and what the registry's realm wants.
	tokenPath = Prefix + "/token"
	// passPrefix begins an Authorization header with a pass.
	passPrefix = "Bearer mirror-"
	// passExpiry is the lifetime in seconds of a pass without a token, after which the client asks for another.
	passExpiry = 60
	// maxForm is the maximum length in bytes of a POST for a token.
	maxForm = 64 << 10
)

// errNoToken says that the registry can't be asked, since its realm gave no token.
var errNoToken = errors.New("the registry's token server is down")

// realm is a registry's token server: its URL, and the service to name in requests.
type realm struct{ url, service string }

// tokens are the realms of registries and the key of passes. Create them with newTokens; they may be shared.
type tokens struct {
	key    [32]byte // of this process's passes
	realms sync.Map // by the registry's name: realm of its last challenge
}

func newTokens() *tokens {
	t := &tokens{}
	_, _ = rand.Read(t.key[:]) // never fails
	return t
}

// credentials are what a request's Authorization header means.
type credentials struct {
	header  string // the header itself, for other object caches
	owner   string // whose consents are valid
	forward string // the Authorization header for the registry
	noToken bool   // the registry can't be asked, for lack of a token
}

// pass returns a pass: PREFIX, MAC, owner and token. The MAC keeps a client from having its own token's consent remembered for somebody
// else.
func (t *tokens) pass(owner, token string) string {
	return strings.TrimPrefix(passPrefix, "Bearer ") + t.mac(owner, token) + "-" + owner + "-" + token
}

func (t *tokens) mac(owner, token string) string {
	h := hmac.New(sha256.New, t.key[:])
	_, _ = h.Write([]byte(owner + "-" + token)) // writing to a hash never fails
	return hex.EncodeToString(h.Sum(nil))
}

// parse parses an Authorization header. trusted says that it comes from another object cache, which has checked the pass's MAC. An owner
// that can't be checked is not believed: then the token counts as any other.
func (t *tokens) parse(header string, trusted bool) credentials {
	plain := credentials{header: header, owner: header, forward: header}
	text, isPass := strings.CutPrefix(header, passPrefix)
	parts := strings.SplitN(text, "-", 3)
	if !isPass || len(parts) != 3 {
		return plain
	}
	mac, owner, token := parts[0], parts[1], parts[2]
	forward := ""
	if token != "" {
		forward = "Bearer " + token
	}
	if !trusted && !hmac.Equal([]byte(mac), []byte(t.mac(owner, token))) {
		return credentials{header: header, owner: forward, forward: forward}
	}
	return credentials{header: header, owner: "owner " + owner, forward: forward, noToken: token == ""}
}

// ownerOf identifies a user without keeping the password.
func ownerOf(user, secret string) string {
	sum := sha256.Sum256([]byte(user + "\x00" + secret))
	return hex.EncodeToString(sum[:])
}

var challengeField = regexp.MustCompile(`([a-z_]+)="([^"]*)"`)

// note remembers the realm of a Bearer challenge among those of an answer. scope is what the challenge asks a token for.
func (t *tokens) note(registry string, challenges []string) (scope string, ok bool) {
	for _, text := range challenges {
		scheme, rest, _ := strings.Cut(text, " ")
		if !strings.EqualFold(scheme, "Bearer") {
			continue
		}
		fields := map[string]string{}
		for _, match := range challengeField.FindAllStringSubmatch(rest, -1) {
			fields[match[1]] = match[2]
		}
		if u, err := url.Parse(fields["realm"]); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
			continue
		}
		t.realms.Store(registry, realm{url: fields["realm"], service: fields["service"]})
		return fields["scope"], true
	}
	return "", false
}

// challenge returns a challenge that names the mirror, at base, as the realm; empty if the registry's realm is not known.
func (t *tokens) challenge(registry, base, scope string) string {
	value, _ := t.realms.Load(registry)
	known, ok := value.(realm)
	if !ok {
		return ""
	}
	return fmt.Sprintf("Bearer realm=%q,service=%q,scope=%q", base+tokenPath+"?ns="+url.QueryEscape(registry), known.service, scope)
}

// serveToken answers a client's request for a token with a pass.
func (c *call) serveToken() {
	user, secret, _ := c.BasicAuth()
	c.Body = http.MaxBytesReader(c.out, c.Body, maxForm)
	if c.Method == http.MethodPost { // OAuth2, docs/content/spec/auth/oauth.md
		if err := c.ParseForm(); err != nil {
			http.Error(c.out, err.Error(), http.StatusBadRequest)
			return
		}
		if user = c.PostForm.Get("username"); c.PostForm.Has("refresh_token") {
			secret = c.PostForm.Get("refresh_token")
		} else {
			secret = c.PostForm.Get("password")
		}
	}
	answer, err := c.askRealm(user, secret)
	var refused *upstream.Refused
	switch {
	case err == nil:
	case upstream.IsDown(err):
		c.registry.o.Log.Debug("a realm gave no token", "registry", c.host, "error", err)
		answer = map[string]any{"expires_in": passExpiry}
	case errors.As(err, &refused):
		c.registry.o.Metrics.Refuse(Kind)
		http.Error(c.out, string(refused.Message), refused.Answer.Status)
		return
	default:
		http.Error(c.out, err.Error(), http.StatusBadGateway)
		return
	}
	token, _ := answer["token"].(string)
	if token == "" {
		token, _ = answer["access_token"].(string)
	}
	pass := c.registry.tokens.pass(ownerOf(user, secret), token)
	answer["token"], answer["access_token"] = pass, pass
	c.out.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(c.out).Encode(answer) // the client notices an answer that ends early
}

// askRealm passes a request for a token on to the registry's realm and returns its answer.
func (c *call) askRealm(user, secret string) (map[string]any, error) {
	to, err := c.realm(c.Context())
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(to.url)
	if err != nil {
		return nil, err
	}
	if at, err := url.Parse(c.upstream); err != nil || origin.IsDowngrade(at, u) {
		return nil, fmt.Errorf("the registry at %s names a token server in plain text at %s, %w", c.upstream, u.Host, origin.ErrElsewhere)
	}
	query := u.Query()
	for name, values := range c.URL.Query() {
		if name != "ns" {
			query[name] = values
		}
	}
	u.RawQuery = query.Encode()
	out, err := upstream.NewRequest(c.Context(), c.Method, u.String(), "", strings.NewReader(c.PostForm.Encode()))
	if err != nil {
		return nil, err
	}
	if c.Method == http.MethodPost {
		out.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	} else if secret != "" {
		out.SetBasicAuth(user, secret)
	}
	d, err := c.registry.o.Upstream.Document(out)
	if err != nil {
		return nil, err
	}
	defer func() { _ = d.Close() }() // opened for reading: closing can't lose data
	answer := map[string]any{}
	if err := json.NewDecoder(io.LimitReader(d.Body, maxForm)).Decode(&answer); err != nil || d.Status != http.StatusOK {
		return nil, fmt.Errorf("the registry's token server answered %d with something else than a token", d.Status)
	}
	return answer, nil
}

// realm returns the registry's realm. If it is not known, the registry is asked.
func (c *call) realm(ctx context.Context) (realm, error) {
	known, ok := c.registry.tokens.realms.Load(c.host)
	if !ok {
		r, err := upstream.NewRequest(ctx, http.MethodGet, c.upstream+Prefix+"/", "", nil)
		if err != nil {
			return realm{}, err
		}
		d, err := c.registry.o.Upstream.Document(r)
		if err == nil {
			_ = d.Close() // only a refusal has a challenge
		}
		var refused *upstream.Refused
		if !errors.As(err, &refused) || upstream.IsDown(err) {
			return realm{}, errors.Join(errors.New("the registry names no token server"), err)
		}
		c.registry.tokens.note(c.host, refused.Answer.Header["Www-Authenticate"])
		if known, ok = c.registry.tokens.realms.Load(c.host); !ok {
			return realm{}, refused
		}
	}
	return known.(realm), nil //nolint:forcetypeassert // note stores no other type
}
