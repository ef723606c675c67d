// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

// The schemes after aliases have been mapped.
const (
	schemeFile  = "file"
	schemeS3    = "s3"
	schemeGS    = "gs"
	schemeAzure = "azure"
	schemeHub   = "hf"
)

var schemes = map[string]string{
	"file": schemeFile,
	"s3":   schemeS3, "s3a": schemeS3, "s3n": schemeS3,
	"gs":   schemeGS,
	"abfs": schemeAzure, "abfss": schemeAzure, "wasb": schemeAzure, "wasbs": schemeAzure,
	"hf": schemeHub,
}

var hasScheme = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9+.-]*):(//|/)`)

// location is a parsed URI. Keys of remote objects are not unescaped: table formats put file names into URIs without escaping, so a
// "%" of a partition value (region=eu%2Fwest) is part of the name.
type location struct {
	scheme string
	bucket string // bucket or container
	host   string // only for Azure: account.dfs.core.windows.net, or empty
	key    string // object key, or path of a local file
	// decoded is the path of a file: URI with its escapes decoded, if that differs from key. It is tried after key.
	decoded string
}

// parse parses a URI or a local path.
func parse(uri string) (location, error) {
	m := hasScheme.FindStringSubmatch(uri)
	if m == nil {
		if uri == "" {
			return location{}, fmt.Errorf("read %q: empty URI: give a path or a URI such as s3://bucket/key", uri)
		}
		return location{scheme: schemeFile, key: uri}, nil
	}
	scheme, ok := schemes[strings.ToLower(m[1])]
	if !ok {
		return location{}, fmt.Errorf("read %s: scheme %q is not supported: use a path, file, s3, s3a, s3n, gs, abfs, abfss, wasb, wasbs or hf", uri, m[1])
	}
	rest := uri[len(m[1])+1:]
	if scheme == schemeFile {
		return parseFile(uri, rest)
	}
	if scheme == schemeHub {
		return parseHub(uri, rest)
	}
	authority, key, _ := strings.Cut(strings.TrimPrefix(rest, "//"), "/")
	if !strings.HasPrefix(rest, "//") || authority == "" || key == "" {
		return location{}, fmt.Errorf("read %s: bucket or key missing: write %s://bucket/key", uri, m[1])
	}
	loc := location{scheme: scheme, bucket: authority, key: key}
	if scheme == schemeAzure {
		if container, host, ok := strings.Cut(authority, "@"); ok {
			loc.bucket, loc.host = container, host
		}
		if loc.bucket == "" {
			return location{}, fmt.Errorf("read %s: container missing: write %s://container@account.dfs.core.windows.net/path", uri, m[1])
		}
	}
	return loc, nil
}

// parseFile parses file:/path, file:///path and file://localhost/path. pyiceberg and Hadoop write the path unescaped, Java's
// Path.toUri and browsers escape it, and the URI does not tell which. So the literal path is tried first (a partition folder may
// really be called region=eu%2Fwest), then the decoded one.
func parseFile(uri, rest string) (location, error) {
	path := rest
	if after, ok := strings.CutPrefix(rest, "//"); ok {
		host, p, found := strings.Cut(after, "/")
		if host != "" && !strings.EqualFold(host, "localhost") {
			return location{}, fmt.Errorf("read %s: host %q in a file URI: write file:///path with three slashes", uri, host)
		}
		if !found {
			return location{}, fmt.Errorf("read %s: path missing: write file:///path", uri)
		}
		path = "/" + p
	}
	loc := location{scheme: schemeFile, key: path}
	if d, err := url.PathUnescape(path); err == nil && d != path {
		loc.decoded = d
	}
	return loc, nil
}
