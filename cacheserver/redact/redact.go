// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package redact takes credentials out of text that people and other programs get to see: logs, errors, status.
//
// Text knows credentials by where they stand (passwords and signatures in URIs, bearer tokens) and by what they are: the
// values that Hide was told of. Hide is for the whole process, as its logs are.
package redact

import (
	"io"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
)

const shown = "***"

// mostHidden bounds the values that are remembered.
const mostHidden = 4096

// leastSecret is the length of the shortest value that Hide hides. Shorter ones would be found in ordinary words.
const leastSecret = 6

var (
	// userinfo is scheme://user:password@; a name without a password, such as abfss://container@account, stays.
	userinfo = regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^\s/?#"'@]*:[^\s/"']*@`)
	// parameter is a query parameter that signs a request or proves who sends it.
	parameter = regexp.MustCompile(`(?i)((?:[?&]|\\u0026|%26)(?:x-amz-(?:signature|credential|security-token)|x-goog-(?:signature|credential)|signature|sig|[a-z_-]*token|[a-z_-]*secret|password|credential|api_?key|key)=)[^&\s"'\\#]+`)
	bearer    = regexp.MustCompile(`(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,}`)
)

var hidden atomic.Pointer[[]string]

// Hide has Text leave the values out from now on, as they are and as a URI's part. Empty and very short ones are not hidden.
func Hide(values ...string) {
	for {
		before := hidden.Load()
		var all []string
		if before != nil {
			all = append(all, *before...)
		}
		for _, v := range values {
			quoted := strconv.Quote(v)
			for _, form := range []string{v, url.QueryEscape(v), url.PathEscape(v), quoted[1 : len(quoted)-1]} {
				if len(v) >= leastSecret && !slices.Contains(all, form) {
					all = append(all, form)
				}
			}
		}
		if len(all) > mostHidden { // catalogs hand out new ones every hour: those of the process itself came first, and stay
			all = slices.Delete(all, mostHidden/4, mostHidden/2)
		}
		if hidden.CompareAndSwap(before, &all) {
			return
		}
	}
}

// Property hides the value of a property if its name says that it is a credential.
func Property(name, value string) {
	if !IsSecret(name) {
		return
	}
	Hide(value)
	if _, secret, ok := strings.Cut(value, ":"); ok { // client-id:secret
		Hide(secret)
	}
	if _, token, ok := strings.Cut(value, " "); ok { // a header's Bearer TOKEN
		Hide(token)
	}
}

// IsSecret says whether a property or environment variable of that name holds a credential.
func IsSecret(name string) bool {
	name = strings.ToLower(strings.ReplaceAll(name, "_", "-"))
	if strings.HasSuffix(name, "-id") || strings.HasSuffix(name, "-file") || strings.HasSuffix(name, "application-credentials") {
		return false
	}
	for _, word := range []string{"secret", "token", "password", "credential", "connection-string", "jsonkey", "account-key", "access-key"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return strings.HasSuffix(name, ".key") || strings.HasPrefix(name, "header.")
}

// Text is the text without credentials.
func Text(text string) string {
	if values := hidden.Load(); values != nil {
		for _, v := range *values {
			text = strings.ReplaceAll(text, v, shown)
		}
	}
	text = userinfo.ReplaceAllString(text, "${1}"+shown+"@")
	text = parameter.ReplaceAllString(text, "${1}"+shown)
	return bearer.ReplaceAllString(text, "${1}"+shown)
}

// Writer passes text on without credentials. Each Write must have whole lines.
func Writer(to io.Writer) io.Writer { return writer{to} }

type writer struct{ to io.Writer }

func (w writer) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.to, Text(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}
