// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package glob matches paths with patterns: *, ? and [a-z] stand for parts of a name, ** for any number of folders.
package glob

import (
	"path"
	"strings"
)

// Has reports whether an address has characters with a meaning in globs.
func Has(uri string) bool { return strings.ContainsAny(uri, "*?[") }

// Split splits a glob into the folder above its first pattern and the patterns, divided by slashes.
func Split(uri string) (root, pattern string) {
	at := strings.LastIndexByte(uri[:strings.IndexAny(uri, "*?[")], '/')
	if at < 0 {
		return ".", uri
	}
	return uri[:at+1], uri[at+1:]
}

// Matches reports whether a path matches a pattern.
func Matches(pattern, p string) bool {
	return matchParts(strings.Split(pattern, "/"), strings.Split(p, "/"))
}

func matchParts(pattern, parts []string) bool {
	for len(pattern) > 0 {
		if pattern[0] == "**" {
			for skip := range len(parts) + 1 {
				if matchParts(pattern[1:], parts[skip:]) {
					return true
				}
			}
			return false
		}
		if len(parts) == 0 {
			return false
		}
		if ok, err := path.Match(pattern[0], parts[0]); err != nil || !ok {
			return false
		}
		pattern, parts = pattern[1:], parts[1:]
	}
	return len(parts) == 0
}
