// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package hubtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// visit is a request being answered.
type visit struct {
	*http.Request
	hub   *Hub
	out   http.ResponseWriter
	token string
	repo  *Repo
	files map[string]File // of the revision
	sha   string          // its commit
}

func (h *Hub) serve(w http.ResponseWriter, r *http.Request) {
	token, refuse := h.note(r)
	v := &visit{Request: r, hub: h, out: w, token: token}
	if refuse != 0 {
		w.Header().Set("Retry-After", "1")
		http.Error(w, "no", refuse)
		return
	}
	h.mu.Lock()
	valid := token == "" || h.Tokens[token]
	h.mu.Unlock()
	if !valid {
		v.fail(http.StatusUnauthorized, "", "Invalid username or password.")
		return
	}
	if r.URL.Path == "/api/whoami-v2" {
		v.json(map[string]any{"type": "user", "name": "somebody", "auth": map[string]any{"accessToken": map[string]any{"displayName": "theirs", "role": "read"}}})
		return
	}
	segments := strings.Split(strings.TrimPrefix(r.URL.EscapedPath(), "/"), "/")
	if segments[0] == "api" && len(segments) >= 4 {
		v.api(segments[1], segments[2]+"/"+segments[3], segments[4:])
		return
	}
	kind := "models"
	if segments[0] == "datasets" {
		kind, segments = "datasets", segments[1:]
	}
	if len(segments) >= 5 && segments[2] == "resolve" {
		v.resolve(kind, segments[0]+"/"+segments[1], segments[3], strings.Join(segments[4:], "/"))
		return
	}
	http.NotFound(w, r)
}

// find finds a repository that the token may see.
func (v *visit) find(kind, id string) bool {
	v.repo = v.hub.repos[kind+"/"+id]
	if v.repo != nil && (!v.repo.Private || v.reads()) {
		v.files, v.sha = v.repo.Files, v.repo.Commit()
		return true
	}
	status := http.StatusNotFound
	if v.token == "" {
		status = http.StatusUnauthorized
	}
	v.fail(status, "RepoNotFound", "Repository not found")
	return false
}

func (v *visit) reads() bool {
	v.hub.mu.Lock()
	defer v.hub.mu.Unlock()
	return !v.repo.Private && !v.repo.Gated || slices.Contains(v.repo.Readers, v.token)
}

// mayRead refuses a request for a gated repository's files.
func (v *visit) mayRead() bool {
	if v.reads() {
		return true
	}
	status := http.StatusForbidden
	if v.token == "" {
		status = http.StatusUnauthorized
	}
	v.fail(status, "GatedRepo", "Access to this repository is restricted")
	return false
}

// hasRevision refuses a request for another revision than main, the conversion or a commit of theirs.
func (v *visit) hasRevision(encoded string) bool {
	revision, err := url.PathUnescape(encoded)
	if err == nil && (revision == "main" || revision == v.repo.Commit()) {
		return true
	}
	if v.repo.Converted != nil && (revision == "refs/convert/parquet" || revision == v.repo.ConvertedCommit()) {
		v.files, v.sha = v.repo.Converted, v.repo.ConvertedCommit()
		return true
	}
	v.fail(http.StatusNotFound, "RevisionNotFound", "Invalid rev id")
	return false
}

func (v *visit) api(kind, id string, rest []string) {
	if !v.find(kind, id) {
		return
	}
	if v.repo.Info != "" && (len(rest) == 0 || rest[0] != "auth-check") {
		v.out.Header().Set("Content-Type", "application/json")
		_, _ = v.out.Write([]byte(v.repo.Info)) // the client may leave
		return
	}
	if len(rest) == 0 {
		v.info()
		return
	}
	switch rest[0] {
	case "auth-check":
		if v.mayRead() {
			v.out.WriteHeader(http.StatusOK)
		}
	case "refs":
		v.json(map[string]any{"branches": []any{map[string]any{"name": "main", "ref": "refs/heads/main", "targetCommit": v.repo.Commit()}}, "tags": []any{}, "converts": []any{}})
	case "revision":
		if v.hasRevision(rest[1]) {
			v.info()
		}
	case "tree":
		if v.hasRevision(rest[1]) {
			v.tree(strings.Join(rest[2:], "/"))
		}
	case "paths-info":
		if v.hasRevision(rest[1]) {
			v.pathsInfo()
		}
	default:
		http.NotFound(v.out, v.Request)
	}
}

func (v *visit) info() {
	var siblings []any
	for _, name := range slices.Sorted(maps.Keys(v.files)) {
		siblings = append(siblings, map[string]any{"rfilename": name})
	}
	v.json(map[string]any{
		"_id": "0", "id": v.repo.ID, "modelId": v.repo.ID, "sha": v.sha, "private": v.repo.Private, "gated": v.repo.Gated, "disabled": false,
		"downloads": 0, "likes": 0, "tags": []any{}, "siblings": siblings, "createdAt": "2026-01-01T00:00:00.000Z", "lastModified": "2026-01-01T00:00:00.000Z",
		"avatar": v.hub.URL + "/avatar.png",
	})
}

// entry describes a file as trees do.
func (v *visit) entry(name string) map[string]any {
	f := v.files[name]
	e := map[string]any{"type": "file", "oid": f.etag()[:40], "size": len(f.Text), "path": name}
	if f.LFS {
		e["lfs"] = map[string]any{"oid": f.etag(), "size": len(f.Text), "pointerSize": 134}
		e["xetHash"] = "xet" + f.etag()[3:]
	}
	return e
}

func (v *visit) tree(dir string) {
	recursive := strings.EqualFold(v.URL.Query().Get("recursive"), "true") || v.URL.Query().Get("recursive") == "1"
	all := map[string]map[string]any{}
	for name := range v.files {
		inside := name
		if dir != "" {
			var below bool
			if inside, below = strings.CutPrefix(name, dir+"/"); !below {
				continue
			}
		}
		for parent := path.Dir(inside); parent != "."; parent = path.Dir(parent) {
			whole := path.Join(dir, parent)
			all[whole] = map[string]any{"type": "directory", "oid": strings.Repeat("0", 40), "size": 0, "path": whole}
		}
		all[name] = v.entry(name)
	}
	var entries []map[string]any
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if recursive || path.Dir(name) == path.Clean("./"+dir) {
			entries = append(entries, all[name])
		}
	}
	if len(entries) == 0 && dir != "" {
		v.fail(http.StatusNotFound, "EntryNotFound", "no such folder")
		return
	}
	first, _ := strconv.Atoi(v.URL.Query().Get("cursor")) // without it, 0
	page := v.hub.Page
	if page == 0 {
		page = len(entries)
	}
	last := min(first+page, len(entries))
	if last < len(entries) {
		next := *v.URL
		query := next.Query()
		query.Set("cursor", strconv.Itoa(last))
		next.RawQuery = query.Encode()
		v.out.Header().Set("Link", fmt.Sprintf(`<%s%s>; rel="next"`, v.hub.URL, next.RequestURI()))
	}
	v.json(entries[first:last])
}

func (v *visit) pathsInfo() {
	var asked struct {
		Paths []string `json:"paths"`
	}
	if strings.HasPrefix(v.Header.Get("Content-Type"), "application/json") {
		if err := json.NewDecoder(v.Body).Decode(&asked); err != nil {
			v.fail(http.StatusBadRequest, "", err.Error())
			return
		}
	} else if err := v.ParseForm(); err == nil {
		asked.Paths = v.PostForm["paths"]
	}
	entries := []any{}
	for _, name := range asked.Paths {
		if _, ok := v.files[name]; ok {
			entries = append(entries, v.entry(name))
		}
	}
	v.json(entries)
}

func (v *visit) resolve(kind, id, revision, encoded string) {
	if !v.find(kind, id) || !v.mayRead() || !v.hasRevision(revision) {
		return
	}
	header := v.out.Header()
	header.Set("X-Repo-Commit", v.sha)
	name, err := url.PathUnescape(encoded)
	f, ok := v.files[name]
	if err != nil || !ok {
		v.fail(http.StatusNotFound, "EntryNotFound", "Entry not found")
		return
	}
	if !f.LFS {
		header.Set("Etag", `"`+f.etag()+`"`)
		v.hub.send(v.out, v.Request, name, f.Text)
		return
	}
	header.Set("X-Linked-Etag", `"`+f.etag()+`"`)
	header.Set("X-Linked-Size", strconv.Itoa(len(f.Text)))
	header.Set("X-Xet-Hash", "xet"+f.etag()[3:])
	header.Set("Link", fmt.Sprintf(`<%s/api/models/x/xet-read-token/main>; rel="xet-auth", <%s/x>; rel="xet-reconstruction-info"`, v.hub.URL, v.hub.URL))
	header.Set("Location", v.hub.cdn.URL+"/"+kind+"/"+id+"/"+encoded)
	v.out.WriteHeader(http.StatusFound)
}

// serveCDN serves files in LFS. It refuses credentials, like servers of signed URLs.
func (h *Hub) serveCDN(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Authorization") != "" {
		http.Error(w, "only one of signature and Authorization", http.StatusBadRequest)
		return
	}
	parts := strings.SplitN(strings.TrimPrefix(r.URL.Path, "/"), "/", 4)
	repo := h.repos[strings.Join(parts[:3], "/")]
	f, ok := repo.Files[parts[3]]
	if !ok {
		f = repo.Converted[parts[3]]
	}
	h.send(w, r, parts[3], f.Text)
}

// send sends a file's bytes.
func (h *Hub) send(w http.ResponseWriter, r *http.Request, name, text string) {
	if r.Method == http.MethodGet {
		h.mu.Lock()
		fault := h.Fault
		h.mu.Unlock()
		if fault != nil && fault(w, text) {
			return
		}
	}
	counted := &counter{ResponseWriter: w}
	http.ServeContent(counted, r, "", time.Time{}, bytes.NewReader([]byte(text)))
	h.mu.Lock()
	defer h.mu.Unlock()
	h.sent[name] += counted.n
}

type counter struct {
	http.ResponseWriter
	n int64
}

// Write counts the bytes.
func (c *counter) Write(p []byte) (int, error) {
	n, err := c.ResponseWriter.Write(p)
	c.n += int64(n)
	return n, err
}

func (v *visit) json(value any) {
	v.out.Header().Set("Content-Type", "application/json; charset=utf-8")
	_ = json.NewEncoder(v.out).Encode(value) // fails only if the client has left
}

func (v *visit) fail(status int, code, message string) {
	if code != "" {
		v.out.Header().Set("X-Error-Code", code)
	}
	v.out.Header().Set("X-Error-Message", message)
	v.out.Header().Set("Content-Type", "application/json; charset=utf-8")
	v.out.WriteHeader(status)
	_ = json.NewEncoder(v.out).Encode(map[string]string{"error": message}) // fails only if the client has left
}
