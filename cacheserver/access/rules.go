// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package access decides who may read a cache, by the tokens of requests and a file of rules.
package access

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strings"

	"github.com/kubeflow/datacache/internal/identity"
	"github.com/kubeflow/datacache/internal/reload"
)

// rules are the content of an access file, see docs/adr/0036-known-readers.md. They are immutable.
type rules struct {
	known      bool                          // only readers that these rules admit may read; else everybody
	plainRows  bool                          // data nodes send rows in plain text, though heads answer over TLS
	audiences  []string                      // of tokens of ServiceAccounts
	jobs       map[string]string             // names of jobs by the UID that stands for them in audiences
	namespaces map[string]bool               // that may read; the key "*" admits all
	accounts   map[string]map[string]bool    // by namespace: the only ones that may read
	writers    map[string]bool               // NAMESPACE/NAME or NAMESPACE/* of those that may put datasets; nil: who may read
	issuers    map[string]issuer             // by URL
	tokens     *reload.File[identity.Tokens] // nil: none
	answers    *answers
}

// issuer is a provider whose tokens are accepted.
type issuer struct {
	keys     identity.Keys
	audience string // that tokens must have; empty: a cluster's issuer of ServiceAccount tokens
	claim    string // the claim that must have one of values; unused for a cluster
	values   map[string]bool
}

// file is the JSON of an access file.
type file struct {
	Readers    string            `json:"readers"`
	Rows       string            `json:"rows"`
	Audiences  []string          `json:"audiences"`
	Jobs       map[string]string `json:"jobs"`
	Namespaces []string          `json:"namespaces"`
	Accounts   []string          `json:"accounts"`
	Writers    []string          `json:"writers"`
	Issuers    []struct {
		URL      string          `json:"url"`
		Keys     json.RawMessage `json:"keys"`
		Audience string          `json:"audience"`
		Claim    string          `json:"claim"`
		Values   []string        `json:"values"`
	} `json:"issuers"`
	Tokens string `json:"tokens"`
}

// The values of readers and rows.
const (
	readersKnown, readersAnyone = "Known", "Anyone"
	rowsTLS, rowsPlain          = "TLS", "Plain"
)

// all, as a namespace, stands for all of them.
const all = "*"

// parse parses an access file, and opens the file of tokens that it names. Errors name the field, its value and the valid values.
func parse(text []byte) (*rules, error) {
	var f *file
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&f); err != nil {
		return nil, fmt.Errorf("want a JSON object as in docs/adr/0036-known-readers.md: %w", err)
	}
	if f == nil { // an object without fields lets everybody read, so null must not count as one
		return nil, errors.New("want a JSON object as in docs/adr/0036-known-readers.md, not null")
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("want one JSON object, with nothing behind it")
	}
	if err := oneOf("readers", &f.Readers, readersAnyone, readersKnown); err != nil {
		return nil, err
	}
	if err := oneOf("rows", &f.Rows, rowsTLS, rowsPlain); err != nil {
		return nil, err
	}
	r := &rules{
		known: f.Readers == readersKnown, plainRows: f.Rows == rowsPlain, audiences: f.Audiences, jobs: f.Jobs,
		namespaces: setOf(f.Namespaces), accounts: map[string]map[string]bool{}, issuers: map[string]issuer{}, answers: newAnswers(),
	}
	for i, audience := range f.Audiences {
		if audience == "" {
			return nil, fmt.Errorf("audiences[%d]: empty, want such as datacache.kubeflow.org/namespaces/team-a/datacaches/reviews", i)
		}
	}
	for i, name := range f.Writers {
		if _, _, ok := splitAccount(name); !ok {
			return nil, fmt.Errorf("writers[%d]: %q, want NAMESPACE/NAME of a ServiceAccount, or NAMESPACE/*", i, name)
		}
	}
	if f.Writers != nil {
		r.writers = setOf(f.Writers)
	}
	for i, name := range f.Accounts {
		namespace, account, ok := splitAccount(name)
		if !ok {
			return nil, fmt.Errorf("accounts[%d]: %q, want NAMESPACE/NAME of a ServiceAccount", i, name)
		}
		if r.accounts[namespace] == nil {
			r.accounts[namespace] = map[string]bool{}
		}
		r.accounts[namespace][account] = true
	}
	if err := r.addIssuers(f); err != nil {
		return nil, err
	}
	return r, r.openTokens(f.Tokens)
}

func splitAccount(name string) (namespace, account string, ok bool) {
	namespace, account, ok = strings.Cut(name, "/")
	return namespace, account, ok && namespace != "" && account != "" && !strings.Contains(account, "/")
}

// oneOf checks a value, and sets the first one if it is empty.
func oneOf(field string, value *string, values ...string) error {
	*value = cmp.Or(*value, values[0])
	if !slices.Contains(values, *value) {
		return fmt.Errorf("%s: %q, want %s", field, *value, strings.Join(values, " or "))
	}
	return nil
}

func setOf(values []string) map[string]bool {
	set := map[string]bool{}
	for _, v := range values {
		set[v] = true
	}
	return set
}

func (r *rules) addIssuers(f *file) error {
	for i, from := range f.Issuers {
		if u, err := url.Parse(from.URL); err != nil || u.Scheme == "" || u.Host == "" {
			return fmt.Errorf("issuers[%d].url: %q, want the claim iss of its tokens, such as https://sso.example.com", i, from.URL)
		}
		if _, twice := r.issuers[from.URL]; twice {
			return fmt.Errorf("issuers[%d].url: %q is there twice", i, from.URL)
		}
		if (from.Audience == "") != (from.Claim == "") || (from.Claim == "") != (len(from.Values) == 0) {
			return fmt.Errorf("issuers[%d]: audience, claim and values go together: give all three for an OpenID provider, none for a cluster", i)
		}
		if len(from.Keys) == 0 {
			return fmt.Errorf("issuers[%d].keys: missing, want the issuer's JWKS (the answer of its jwks_uri)", i)
		}
		keys, err := identity.ParseKeys(from.Keys)
		if err != nil {
			return fmt.Errorf("issuers[%d].keys: %w", i, err)
		}
		r.issuers[from.URL] = issuer{keys: keys, audience: from.Audience, claim: from.Claim, values: setOf(from.Values)}
	}
	return nil
}

func (r *rules) openTokens(path string) (err error) {
	if path == "" {
		return nil
	}
	if r.tokens, err = reload.Open(path, identity.ParseTokens); err != nil {
		return fmt.Errorf("tokens: %w", err)
	}
	return nil
}
