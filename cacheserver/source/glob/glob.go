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

// Matches reports whether a path matches a pattern. It takes at most as many steps as the product of their numbers of parts, since strangers
// write patterns too.
func Matches(pattern, p string) bool {
	patterns, parts := strings.Split(pattern, "/"), strings.Split(p, "/")
	at, folders, skipped := 0, -1, 0 // next pattern; index of the last ** before it; first part that this ** does not match yet
	for i := 0; i < len(parts); {
		switch {
		case at < len(patterns) && patterns[at] == "**":
			folders, skipped = at, i
			at++
		case at < len(patterns) && matchesName(patterns[at], parts[i]):
			at++
			i++
		case folders >= 0:
			skipped++
			at, i = folders+1, skipped
		default:
			return false
		}
	}
	for at < len(patterns) && patterns[at] == "**" {
		at++
	}
	return at == len(patterns)
}

func matchesName(pattern, name string) bool {
	ok, err := path.Match(pattern, name)
	return err == nil && ok
}
