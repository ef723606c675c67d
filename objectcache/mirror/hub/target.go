// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"net/url"
	"regexp"
	"slices"
	"strings"
)

// target is a parsed path of the hub. Paths that do not concern one repository have only path.
type target struct {
	path     string // as it is sent to the hub, encoded, with a leading slash
	kind     string // models, datasets or spaces; empty: not of a repository
	repo     string // NAME or OWNER/NAME
	part     string // resolve, or what follows the repository below /api: revision, tree and so on; empty: the repository itself
	revision string // branch, tag or commit, decoded
	file     string // path within the repository, encoded
}

var (
	kinds    = []string{"models", "datasets", "spaces"}
	goodName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,95}$`)
	commit   = regexp.MustCompile(`^[0-9a-f]{40}$`)
	// After the repository, a path below /api has one of alone, or one of withRevision and a revision. So a segment in these lists shows
	// that the repository's name has ended: names have an owner or not.
	alone        = []string{"refs", "auth-check"}
	withRevision = []string{"revision", "tree", "paths-info", "commits", "treesize", "xet-read-token"}
)

// parse parses an encoded path. ok is false for a path that servers may resolve to another one: with empty segments, dots, or separators
// that are encoded, except for slashes within a revision.
func parse(encoded string) (t target, ok bool) {
	rest, ok := strings.CutPrefix(encoded, "/")
	if !ok {
		return target{}, false
	}
	raw := strings.Split(rest, "/")
	segments := make([]string, len(raw))
	for i, each := range raw {
		decoded, err := url.PathUnescape(each)
		if err != nil || !isSafe(decoded) {
			return target{}, false
		}
		segments[i], raw[i] = decoded, url.PathEscape(decoded)
	}
	t = target{path: "/" + strings.Join(raw, "/")}
	if segments[0] == "api" {
		t.parseAPI(segments[1:])
	} else {
		t.parseResolve(segments, raw)
	}
	for _, each := range segments {
		if strings.Contains(each, "/") && each != t.revision {
			return target{}, false
		}
	}
	return t, true
}

// isSafe reports whether every part of a decoded segment is an ordinary name.
func isSafe(segment string) bool {
	for part := range strings.SplitSeq(segment, "/") {
		if part == "" || part == "." || part == ".." || strings.ContainsFunc(part, func(c rune) bool { return c < ' ' || c == 0x7f || c == '\\' }) {
			return false
		}
	}
	return true
}

// parseAPI parses KIND/REPO[/PART[/REVISION[/FILE]]].
func (t *target) parseAPI(segments []string) {
	if len(segments) < 2 || !slices.Contains(kinds, segments[0]) {
		return
	}
	names := 2
	if len(segments) == 2 || len(segments) == 3 && slices.Contains(alone, segments[2]) || len(segments) > 3 && slices.Contains(withRevision, segments[2]) {
		names = 1
	}
	rest, ok := t.setRepo(segments[0], segments[1:], names)
	if !ok || len(rest) == 0 {
		return
	}
	t.part = rest[0]
	if len(rest) > 1 && slices.Contains(withRevision, t.part) {
		t.revision = rest[1]
	}
}

// parseResolve parses [KIND/]REPO/resolve/REVISION/FILE.
func (t *target) parseResolve(segments, raw []string) {
	kind, all := "models", len(segments)
	if slices.Contains(kinds, segments[0]) {
		kind, segments = segments[0], segments[1:]
	}
	names := slices.Index(segments, "resolve")
	if names != 1 && names != 2 || len(segments) < names+3 {
		return
	}
	rest, ok := t.setRepo(kind, segments, names)
	if !ok {
		return
	}
	t.part, t.revision = "resolve", rest[1]
	t.file = strings.Join(raw[all-len(rest)+2:], "/")
}

// setRepo sets the repository from the first segments and returns the others.
func (t *target) setRepo(kind string, segments []string, names int) (rest []string, ok bool) {
	for _, name := range segments[:names] {
		if !goodName.MatchString(name) || strings.Contains(name, "..") {
			return nil, false
		}
	}
	t.kind, t.repo = kind, strings.Join(segments[:names], "/")
	return segments[names:], true
}

// isFixed reports whether the target's content never changes.
func (t target) isFixed() bool { return commit.MatchString(t.revision) }

// scope names the repository, for rights.
func (t target) scope() string { return t.kind + "/" + t.repo }

// authCheck is the path at which the hub says whether a token may read the repository's files.
func (t target) authCheck() string { return "/api/" + t.kind + "/" + t.repo + "/auth-check" }

// at is the path of a resolve target at a commit.
func (t target) at(commit string) string {
	prefix := "/"
	if t.kind != "models" {
		prefix = "/" + t.kind + "/"
	}
	return prefix + t.repo + "/resolve/" + url.PathEscape(commit) + "/" + t.file
}

// isDocument reports whether the answer is the same for everybody who may read the repository, and may be kept.
func (t target) isDocument(method string) bool {
	switch {
	case t.kind == "":
		return false
	case t.part == "paths-info":
		return method == "POST"
	case method != "GET":
		return false
	default:
		return slices.Contains([]string{"", "revision", "tree", "refs", "treesize"}, t.part)
	}
}

// parameters are the parameters on which the hub's documents depend, by part, with what their values may be.
var parameters = map[string]map[string]*regexp.Regexp{
	"":         {"expand": word, "blobs": boolean, "securityStatus": boolean},
	"revision": {"expand": word, "blobs": boolean, "securityStatus": boolean},
	"tree":     {"recursive": boolean, "expand": boolean, "limit": number, "cursor": cursor},
	"refs":     {"include_prs": boolean, "include_pull_requests": boolean},
}

var (
	boolean = regexp.MustCompile(`^(true|True|false|False|0|1)$`)
	word    = regexp.MustCompile(`^[A-Za-z]{1,40}$`)
	number  = regexp.MustCompile(`^[0-9]{1,6}$`)
	cursor  = regexp.MustCompile(`^[ -~]{1,1000}$`)
)

// query returns the query of a document in a canonical form; ok is false if it has other parameters than those known, or other values.
func (t target) query(raw string) (canonical string, ok bool) {
	values, err := url.ParseQuery(raw)
	if err != nil {
		return "", false
	}
	for name, all := range values {
		form := parameters[t.part][name]
		for _, value := range all {
			if form == nil || !form.MatchString(value) {
				return "", false
			}
		}
	}
	return values.Encode(), true
}

// readable are the parts of a repository that a cluster's token may read with the namespace's token at the hub. Others could return
// secrets (xet-write-token) or settings.
var readable = []string{"", "revision", "tree", "paths-info", "refs", "auth-check", "commits", "treesize", "xet-read-token", "resolve"}

func (t target) isReadable(method string) bool {
	if t.kind == "" || !slices.Contains(readable, t.part) {
		return false
	}
	return method == "GET" || method == "HEAD" || method == "POST" && t.part == "paths-info"
}
