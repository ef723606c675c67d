// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

// Entry is an object or a file that List found.
type Entry struct {
	URI     string // for Open
	Path    string // relative to the listed folder, with slashes; empty if the URI that was listed names the file itself
	Size    int64
	Version string // File.Version of a file that is opened now
	// Modified is when it was written; zero if the store does not tell.
	Modified time.Time
}

// deepest bounds how deep the folders of a disk are listed, since links may lead back.
const deepest = 64

// List lists the objects or files in the folder that uri names, with those in its subfolders, in no particular order; or the one that uri
// itself names. The sequence ends with an error, which matches fs.ErrNotExist if there is nothing, or after the last entry.
func (s *Store) List(ctx context.Context, uri string) iter.Seq2[Entry, error] {
	return func(yield func(Entry, error) bool) {
		loc, err := parseFolder(uri)
		switch {
		case err != nil:
		case loc.scheme == schemeFile:
			err = s.listLocal(ctx, uri, loc, func(e Entry) bool { return yield(e, nil) })
		default:
			err = s.listRemote(ctx, strings.TrimRight(uri, "/"), loc, func(e Entry) bool { return yield(e, nil) })
		}
		if err != nil && !errors.Is(err, errEnough) {
			yield(Entry{}, err)
		}
	}
}

// errEnough ends a listing whose consumer wants no more.
var errEnough = errors.New("enough")

// parseFolder parses the URI of a folder, which may be a whole bucket.
func parseFolder(uri string) (location, error) {
	loc, err := parse(strings.TrimRight(uri, "/") + "/")
	if err == nil || !hasScheme.MatchString(uri) {
		return loc, err
	}
	loc, bucketErr := parse(strings.TrimRight(uri, "/") + "/x") // parse wants a key behind the bucket
	if bucketErr != nil {
		return loc, err
	}
	loc.key = ""
	return loc, nil
}

// listLocal lists a folder of a disk. It follows links. The URIs are absolute paths.
func (s *Store) listLocal(ctx context.Context, uri string, loc location, yield func(Entry) bool) error {
	folder, err := filepath.Abs(loc.key)
	if err == nil {
		_, err = os.Stat(folder)
	}
	if errors.Is(err, fs.ErrNotExist) && loc.decoded != "" {
		if _, err2 := os.Stat(loc.decoded); err2 == nil {
			folder, err = filepath.Clean(loc.decoded), nil
		}
	}
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("there is no file or folder of this name on this machine: check the path (%w)", err)
	}
	if err == nil {
		err = walk(ctx, folder, "", yield)
	}
	if err != nil && !errors.Is(err, errEnough) && ctx.Err() == nil {
		return s.failed(uri, 1, 0, err)
	}
	return err
}

// walk lists a file, or a folder with all subfolders; rel is its path within the folder that is listed.
func walk(ctx context.Context, at, rel string, yield func(Entry) bool) error {
	if ctx.Err() != nil {
		return canceled(ctx, at)
	}
	st, err := os.Stat(at)
	if err != nil {
		return err
	}
	if !st.IsDir() {
		if !yield(Entry{URI: at, Path: rel, Size: st.Size(), Version: st.ModTime().UTC().Format(time.RFC3339Nano), Modified: st.ModTime()}) {
			return errEnough
		}
		return nil
	}
	if strings.Count(rel, "/") >= deepest {
		return fmt.Errorf("%s lies more than %d folders deep: a link may lead back to a folder above it", at, deepest)
	}
	names, err := os.ReadDir(at)
	if err != nil {
		return err
	}
	for _, entry := range names {
		err := walk(ctx, filepath.Join(at, entry.Name()), path.Join(rel, entry.Name()), yield)
		if errors.Is(err, fs.ErrNotExist) && entry.Type()&fs.ModeSymlink == 0 {
			continue // removed after the folder was read
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// page is a part of the listing of a bucket.
type page struct {
	entries []listed
	next    string // token of the next page; empty: this is the last one
}

// listed is an object of a page.
type listed struct {
	key      string
	size     int64
	tag      string
	modified time.Time
}

// listRemote lists the objects of a bucket; folder is the URI without a slash at its end.
func (s *Store) listRemote(ctx context.Context, folder string, loc location, yield func(Entry) bool) error {
	b, err := s.bucket(ctx, loc)
	if err != nil {
		return s.failed(folder, 0, 0, err)
	}
	prefix, found := loc.key, false
	for token := ""; ; {
		var p page
		err := s.retry(ctx, folder, func(ctx context.Context) error {
			return s.Attempt(ctx, func(ctx context.Context, _ func(int)) (err error) {
				if p, err = b.list(ctx, prefix, token); err == nil && token != "" && p.next == token {
					err = fmt.Errorf("page %.64q of the list names itself as the next one: %w", token, errProtocol)
				}
				return err
			})
		})
		if errors.Is(err, fs.ErrPermission) {
			err = fmt.Errorf("%w; to list a folder they must also allow s3:ListBucket, storage.objects.list or the like on %s", err, loc.bucket)
		}
		if err != nil {
			return err
		}
		for _, o := range p.entries {
			rel := strings.TrimPrefix(o.key, prefix)
			if rel == "" || strings.HasSuffix(rel, "/") {
				continue // a placeholder, which stands for an empty folder
			}
			found = true
			uri := folder + "/" + rel
			if !yield(Entry{URI: uri, Path: uri[len(folder)+1:], Size: o.size, Version: versionOf(o.tag, o.modified), Modified: o.modified}) {
				return errEnough
			}
		}
		if token = p.next; token == "" {
			break
		}
	}
	if !found {
		return s.listOne(ctx, folder, yield)
	}
	return nil
}

// listOne yields the object that a URI itself names.
func (s *Store) listOne(ctx context.Context, uri string, yield func(Entry) bool) error {
	f, err := s.Open(ctx, uri)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // opened for reading: closing can't lose data
	if !yield(Entry{URI: uri, Size: f.Size(), Version: f.Version()}) {
		return errEnough
	}
	return nil
}

// versionOf is the version of a file with an entity tag and a time of modification.
func versionOf(tag string, modified time.Time) string {
	switch {
	case tag != "":
		return tag
	case modified.IsZero():
		return ""
	}
	return modified.UTC().Format(time.RFC3339Nano)
}
