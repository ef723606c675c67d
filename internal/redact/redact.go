// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package redact removes credentials from text that people and other programs see: logs, errors, status.
//
// Text recognizes credentials by their position (passwords and signatures in URIs, bearer tokens) and by their value, if the value
// was passed to Hide. Hide applies to the whole process.
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

// mostHidden bounds the number of values that are remembered.
const mostHidden = 4096

// leastSecret is the minimum length of a value that Hide hides. Shorter ones would match in ordinary words.
const leastSecret = 6

var (
	// userinfo matches scheme://user:password@, but not a name without a password, such as abfss://container@account.
	userinfo = regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://)[^\s/?#"'@]*:[^\s/"']*@`)
	// parameter matches query parameters that sign a request or authenticate its sender.
	parameter = regexp.MustCompile(`(?i)((?:[?&]|\\u0026|%26)(?:x-amz-(?:signature|credential|security-token)|x-goog-(?:signature|credential)|signature|sig|[a-z_-]*token|[a-z_-]*secret|password|credential|api_?key|key)=)[^&\s"'\\#]+`)
	bearer    = regexp.MustCompile(`(?i)\b((?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{6,}`)
)

var hidden atomic.Pointer[[]string]

// Hide makes Text redact the values from now on, literally and URL-escaped. Empty and very short values are ignored.
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
		if len(all) > mostHidden { // catalogs issue new credentials every hour: keep the process's own, which came first
			all = slices.Delete(all, mostHidden/4, mostHidden/2)
		}
		if hidden.CompareAndSwap(before, &all) {
			return
		}
	}
}

// Property hides the value of a property whose name says that it is a credential.
func Property(name, value string) {
	if !IsSecret(name) {
		return
	}
	Hide(value)
	if _, secret, ok := strings.Cut(value, ":"); ok { // client-id:secret
		Hide(secret)
	}
	if _, token, ok := strings.Cut(value, " "); ok { // a header value: Bearer TOKEN
		Hide(token)
	}
}

// IsSecret reports whether a property or environment variable with the name holds a credential.
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

// Text returns the text with credentials redacted.
func Text(text string) string {
	if values := hidden.Load(); values != nil {
		for _, v := range *values {
			text = strings.ReplaceAll(text, v, shown)
		}
	}
	// Most lines of a log have no credential: what each expression needs is looked for first, in a tenth of its time.
	if strings.Contains(text, "://") && strings.Contains(text, "@") {
		text = userinfo.ReplaceAllString(text, "${1}"+shown+"@")
	}
	lower := strings.ToLower(text)
	if strings.ContainsAny(lower, "?&") || strings.Contains(lower, `\u0026`) || strings.Contains(lower, "%26") {
		text = parameter.ReplaceAllString(text, "${1}"+shown)
	}
	if strings.Contains(lower, "bearer") || strings.Contains(lower, "basic") {
		text = bearer.ReplaceAllString(text, "${1}"+shown)
	}
	return text
}

// Writer redacts the text written to it. Each Write must consist of whole lines.
func Writer(to io.Writer) io.Writer { return writer{to} }

type writer struct{ to io.Writer }

func (w writer) Write(p []byte) (int, error) {
	if _, err := io.WriteString(w.to, Text(string(p))); err != nil {
		return 0, err
	}
	return len(p), nil
}
