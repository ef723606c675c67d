// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hub finds the Parquet files of a data set on a Hugging Face hub: those of one configuration and one split, as the library
// datasets picks them.
package hub

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/kubeflow/datacache/cacheserver/objstore"
)

// Scheme is the beginning of the addresses of data sets.
const Scheme = "hf://"

// converted is the branch where a hub keeps Parquet files that it made of a data set's files of other formats.
const converted = "refs/convert/parquet"

// maxCard bounds the bytes of a data set's card.
const maxCard = 16 << 20

// Address names a data set, or some of its files: hf://[datasets/]owner/name[@revision][/path or glob][?config=name&split=name].
type Address struct {
	Repo     string // hf://owner/name
	Revision string // branch, tag or commit; empty: main
	Path     string // folder, file or glob; empty: the files of Config and Split
	Config   string // empty: the only one, or the one that the data set names as its default
	Split    string // empty: the only one
}

// IsAddress reports whether a URI is an Address.
func IsAddress(uri string) bool { return strings.HasPrefix(uri, Scheme) }

// Parse parses an Address.
func Parse(uri string) (Address, error) {
	rest, rawQuery, _ := strings.Cut(strings.TrimPrefix(uri, Scheme), "?")
	query, err := url.ParseQuery(rawQuery)
	if err != nil {
		return Address{}, fmt.Errorf("address %s: its query can't be read: %w", uri, err)
	}
	for name, values := range query {
		if (name != "config" && name != "split") || len(values) > 1 || values[0] == "" {
			return Address{}, fmt.Errorf("address %s: %s=%s: give config and split at most once each, with the name of one", uri, name, strings.Join(values, ","))
		}
	}
	a := Address{Config: query.Get("config"), Split: query.Get("split")}
	parts := strings.SplitN(strings.TrimPrefix(rest, "datasets/"), "/", 3)
	if len(parts) < 2 || parts[0] == "" || parts[1] == "" {
		return Address{}, fmt.Errorf("address %s: owner or name missing: write hf://owner/name", uri)
	}
	if len(parts) == 3 {
		a.Path = parts[2]
	}
	name, revision, pinned := strings.Cut(parts[1], "@")
	if pinned && revision == "refs" {
		segments := strings.SplitN(a.Path, "/", 3)
		if len(segments) < 2 {
			return Address{}, fmt.Errorf("address %s: a revision below refs has two more parts, such as refs/pr/1", uri)
		}
		revision, a.Path = strings.Join([]string{"refs", segments[0], segments[1]}, "/"), strings.Join(segments[2:], "")
	}
	revision, err = url.PathUnescape(revision)
	if err != nil || pinned && revision == "" {
		return Address{}, fmt.Errorf("address %s: the revision after @ is empty or has a broken escape: name a branch, a tag or a commit, or leave @ out for main", uri)
	}
	a.Repo, a.Revision = Scheme+parts[0]+"/"+name, revision
	if a.Path != "" && (a.Config != "" || a.Split != "") {
		return Address{}, fmt.Errorf("address %s: a path names the files already: leave out config and split, or the path %s", uri, a.Path)
	}
	return a, nil
}

// Folder is where the files of an Address are.
type Folder struct {
	Root string // URI of the data set at one commit, with a slash at its end
	// Files are the files below Root, in the order of their rows.
	Files []objstore.Entry
	// Note says where the files are, if it is not where the address says; empty: there.
	Note string
}

// Find finds the files of an Address that has no path.
func Find(ctx context.Context, store *objstore.Store, a Address) (*Folder, error) {
	repo, err := open(ctx, store, a.Folder())
	if err != nil {
		return nil, err
	}
	note := ""
	if !slices.ContainsFunc(repo.files, isParquet) && a.Revision == "" {
		a.Revision = converted
		if repo, err = open(ctx, store, a.Folder()); err != nil {
			return nil, fmt.Errorf("%s has no Parquet files, and the hub has not converted its files: %w", a.Repo, err)
		}
		note = "read from the hub's conversion to Parquet, " + converted
	}
	configs, err := repo.configs(ctx, store, a.Revision == converted)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.Repo, err)
	}
	c, err := choose("config", a.Config, configs, func(c config) bool { return c.preferred })
	if err != nil {
		return nil, fmt.Errorf("%s: %w", a.Repo, err)
	}
	split, err := choose("split", a.Split, c.splits, func(split) bool { return false })
	if err != nil {
		return nil, fmt.Errorf("%s, config %s: %w", a.Repo, c.name, err)
	}
	return &Folder{Root: repo.root, Files: split.files, Note: note}, nil
}

// Folder is the URI of the whole data set at the revision, with a slash at its end.
func (a Address) Folder() string {
	if a.Revision == "" {
		return a.Repo + "/"
	}
	return a.Repo + "@" + url.PathEscape(a.Revision) + "/"
}

var commit = regexp.MustCompile(`^(hf://[^/]+/[^/@]+)@[0-9a-f]{40}/`)

// WithoutCommit returns the URI of a file without the commit, which is another one after each change of a data set. Other URIs stay as they
// are.
func WithoutCommit(uri string) string { return commit.ReplaceAllString(uri, "$1/") }

// named is a config or a split.
type named interface{ title() string }

// choose returns the one with the name or, with no name, the only one or the preferred one.
func choose[T named](kind, name string, all []T, preferred func(T) bool) (T, error) {
	var none T
	if len(all) == 0 {
		return none, errors.New("it has no Parquet files: name a data set or a revision that has some")
	}
	if name == "" && len(all) == 1 {
		return all[0], nil
	}
	names := make([]string, len(all))
	for i, each := range all {
		if name == each.title() || name == "" && preferred(each) {
			return each, nil
		}
		names[i] = each.title()
	}
	if name == "" {
		return none, fmt.Errorf("it has %d %ss: name one of %s by ?%s=", len(all), kind, strings.Join(names, ", "), kind)
	}
	return none, fmt.Errorf("it has no %s %q: name one of %s by ?%s=", kind, name, strings.Join(names, ", "), kind)
}

// repository is a data set at one commit.
type repository struct {
	root  string
	files []objstore.Entry // those that datasets sees, sorted by path
}

func open(ctx context.Context, store *objstore.Store, uri string) (*repository, error) {
	root, err := store.Pin(ctx, uri)
	if err != nil {
		return nil, err
	}
	r := &repository{root: root}
	for e, err := range store.List(ctx, root) {
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", uri, err)
		}
		if !isHidden(e.Path) {
			r.files = append(r.files, e)
		}
	}
	slices.SortFunc(r.files, func(a, b objstore.Entry) int { return strings.Compare(a.Path, b.Path) })
	return r, nil
}

// isHidden reports whether datasets passes a file over: its name or a folder begins with a dot, or a folder with two underscores.
func isHidden(p string) bool {
	for segment := range strings.SplitSeq(p, "/") {
		if strings.HasPrefix(segment, ".") {
			return true
		}
	}
	return strings.HasPrefix(p, "__") && strings.Contains(p, "/") || strings.Contains(path.Dir(p), "/__")
}

func isParquet(e objstore.Entry) bool { return strings.HasSuffix(e.Path, ".parquet") }

// configs returns the configurations: those that the data set's card describes, or one of the files' names.
func (r *repository) configs(ctx context.Context, store *objstore.Store, converted bool) ([]config, error) {
	if converted {
		return r.convertedConfigs(), nil
	}
	text, err := store.ReadAtMost(ctx, r.root+"README.md", maxCard)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	described, err := parseCard(text)
	if err != nil {
		return nil, err
	}
	var configs []config
	for _, d := range described {
		c, err := r.describe(d)
		if err != nil {
			return nil, fmt.Errorf("config %s: %w", d.Name, err)
		}
		configs = append(configs, c)
	}
	if len(described) == 0 {
		if splits := splitsByName(r.files, ""); len(splits) > 0 {
			configs = []config{{name: "default", splits: splits}}
		}
	}
	return configs, nil
}
