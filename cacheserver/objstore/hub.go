// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"regexp"
	"strings"
	"sync"

	"github.com/kubeflow/datacache/internal/origin"
)

const hubEndpoint = "https://huggingface.co"

// hubCommit matches the name of a commit, which a branch or a tag may move away from.
var hubCommit = regexp.MustCompile(`^[0-9a-f]{40}$`)

// hubBucket reads a revision of a data set on a Hugging Face hub by the hub's HTTP API: the tree of its files, and their ranges, for which
// the hub redirects to the servers that keep large files.
type hubBucket struct {
	client   *http.Client
	endpoint string
	cfg      Hub
	repo     string // owner/name
	revision string // branch, tag or commit

	mu      sync.Mutex
	targets map[string]hubTarget // by address at the hub
}

// hubTarget is where the hub redirected the requests for a file to.
type hubTarget struct{ address, tag string }

// mostTargets bounds hubBucket.targets; a file that is read has one.
const mostTargets = 256

func newHubBucket(cfg Hub, client *http.Client, name string) (*hubBucket, error) {
	endpoint, err := url.Parse(cmp.Or(cfg.Endpoint, hubEndpoint))
	if err != nil || endpoint.Host == "" {
		return nil, fmt.Errorf("endpoint of the hub %q: give a URL such as https://host (HF_ENDPOINT)", cfg.Endpoint)
	}
	repo, revision, _ := strings.Cut(name, "@")
	return &hubBucket{
		client: client, cfg: cfg, endpoint: strings.TrimRight(endpoint.String(), "/"), repo: repo, revision: revision, targets: map[string]hubTarget{},
	}, nil
}

// parseHub parses //owner/name[@revision]/path. Slashes of the revision are escaped.
func parseHub(uri, rest string) (location, error) {
	parts := strings.SplitN(strings.TrimPrefix(rest, "//"), "/", 3)
	if len(parts) < 3 || parts[0] == "" || parts[1] == "" || parts[2] == "" {
		return location{}, fmt.Errorf("read %s: owner, name or path missing: write hf://owner/name/path or hf://owner/name@revision/path", uri)
	}
	name, escaped, pinned := strings.Cut(parts[1], "@")
	if !pinned {
		escaped = "main"
	}
	revision, err := url.PathUnescape(escaped)
	if err != nil || name == "" || revision == "" {
		return location{}, fmt.Errorf("read %s: the data set %q has no name or no revision: write hf://owner/name@revision/path", uri, parts[1])
	}
	return location{scheme: schemeHub, bucket: parts[0] + "/" + name + "@" + revision, key: parts[2]}, nil
}

// Pin returns a URI with the commit that its revision is now, if the URI is of a Hugging Face hub. Other URIs stay as they are.
func (s *Store) Pin(ctx context.Context, uri string) (string, error) {
	loc, err := parseFolder(uri)
	if err != nil || loc.scheme != schemeHub {
		return uri, err
	}
	made, err := s.bucket(ctx, loc)
	if err != nil {
		return "", s.failed(uri, 0, 0, err)
	}
	b, _ := made.(*hubBucket)
	commit := b.revision
	if !hubCommit.MatchString(commit) {
		err = s.retry(ctx, uri, func(ctx context.Context) error {
			return s.Attempt(ctx, func(ctx context.Context, _ func(int)) (err error) {
				commit, err = b.commit(ctx)
				return err
			})
		})
	}
	if err != nil {
		return "", err
	}
	return "hf://" + b.repo + "@" + commit + "/" + loc.key, nil
}

// commit asks for the commit of the revision.
func (b *hubBucket) commit(ctx context.Context) (string, error) {
	var info struct {
		SHA string `json:"sha"`
	}
	if _, err := b.api(ctx, "revision", "", url.Values{"expand": {"sha"}}, &info); err != nil {
		return "", err
	}
	if !hubCommit.MatchString(info.SHA) {
		return "", fmt.Errorf("the hub names the commit %q of %s@%s: %w", info.SHA, b.repo, b.revision, errProtocol)
	}
	return info.SHA, nil
}

// api requests a part of the hub's API and decodes the answer.
func (b *hubBucket) api(ctx context.Context, part, path string, query url.Values, into any) (http.Header, error) {
	address := b.endpoint + "/api/datasets/" + b.repo + "/" + part + "/" + url.PathEscape(b.revision)
	if path != "" {
		address += "/" + escapeKey(path)
	}
	resp, _, err := b.follow(ctx, address+"?"+query.Encode(), "")
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close() // the body was read to its end or is abandoned
	if err := json.NewDecoder(io.LimitReader(resp.Body, pageLimit)).Decode(into); err != nil {
		return nil, fmt.Errorf("the hub's answer to %s: %w", part, err)
	}
	return resp.Header, nil
}

func (b *hubBucket) list(ctx context.Context, prefix, token string) (page, error) {
	query := url.Values{"recursive": {"true"}}
	if token != "" {
		query.Set("cursor", token)
	}
	var found []struct {
		Type, OID, Path string
		Size            int64
		LFS             *struct{ OID string }
	}
	header, err := b.api(ctx, "tree", strings.TrimRight(prefix, "/"), query, &found)
	if refused := (*refusal)(nil); errors.As(err, &refused) && refused.code == "EntryNotFound" {
		return page{}, nil // no folder; it may be a file
	}
	if err != nil {
		return page{}, err
	}
	p := page{next: nextCursor(header)}
	for _, f := range found {
		if f.Type != "file" {
			continue
		}
		o := listed{key: f.Path, size: f.Size, tag: f.OID}
		if f.LFS != nil {
			o.tag = f.LFS.OID
		}
		p.entries = append(p.entries, o)
	}
	return p, nil
}

// nextCursor is the cursor of the next page, which a Link header names; empty: there is none.
func nextCursor(h http.Header) string {
	for _, link := range h.Values("Link") {
		address, relation, _ := strings.Cut(link, ">")
		if strings.Contains(relation, `rel="next"`) {
			if next, err := url.Parse(strings.TrimPrefix(address, "<")); err == nil {
				return next.Query().Get("cursor")
			}
		}
	}
	return ""
}

func (b *hubBucket) get(ctx context.Context, key string, want span, _ string) (answer, error) {
	address := b.endpoint + "/datasets/" + b.repo + "/resolve/" + url.PathEscape(b.revision) + "/" + escapeKey(key)
	resp, tag, err := b.follow(ctx, address, want.header())
	if err != nil {
		return answer{}, err
	}
	return newAnswer(resp.Body, resp.Header.Get("Content-Range"), resp.ContentLength, tag), nil
}

// mostRedirects bounds the redirects of a request.
const mostRedirects = 5

// follow sends a GET, follows its redirects and returns the response with the file's tag, which the hub's own answer has. Only the hub
// receives the token. Where a file's requests are redirected to is remembered until that server refuses one.
func (b *hubBucket) follow(ctx context.Context, address, byteRange string) (*http.Response, string, error) {
	b.mu.Lock()
	target, known := b.targets[address]
	b.mu.Unlock()
	if known {
		if resp, err := b.send(ctx, target.address, byteRange); err == nil && resp.StatusCode < http.StatusMultipleChoices {
			return resp, target.tag, nil
		} else if err == nil {
			_ = resp.Body.Close() // the hub is asked again, as the address may have expired
		}
		b.mu.Lock()
		delete(b.targets, address)
		b.mu.Unlock()
	}
	tag := ""
	at := address
	for range mostRedirects {
		resp, err := b.send(ctx, at, byteRange)
		if err != nil {
			return nil, "", err
		}
		if b.isHub(at) {
			tag = strings.Trim(cmp.Or(resp.Header.Get("X-Linked-Etag"), resp.Header.Get("ETag"), tag), `"`)
		}
		if resp.StatusCode == http.StatusOK || resp.StatusCode == http.StatusPartialContent {
			if at != address && tag != "" {
				b.remember(address, hubTarget{at, tag})
			}
			return resp, tag, nil
		}
		next, err := resp.Location()
		if err != nil || resp.StatusCode >= http.StatusBadRequest {
			return nil, "", hubRefusal(resp)
		}
		_ = resp.Body.Close() // of a redirect, which has nothing more to say
		if origin.IsDowngrade(resp.Request.URL, next) {
			return nil, "", fmt.Errorf("the hub redirects from %s to an unencrypted address at %s: %w", at, next.Host, errProtocol)
		}
		at = next.String()
	}
	return nil, "", fmt.Errorf("more than %d redirects: %w", mostRedirects, errProtocol)
}

func (b *hubBucket) remember(address string, target hubTarget) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.targets) >= mostTargets {
		clear(b.targets)
	}
	b.targets[address] = target
}

// isHub reports whether an address is one of the hub itself.
func (b *hubBucket) isHub(address string) bool { return strings.HasPrefix(address, b.endpoint+"/") }

// send sends one GET. The caller closes the body.
func (b *hubBucket) send(ctx context.Context, address, byteRange string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return nil, fmt.Errorf("hub request: %w", err)
	}
	req.Header.Set("Accept-Encoding", "identity") // ranges are those of the stored bytes
	setUnlessEmpty(req.Header, "Range", byteRange)
	if b.isHub(address) {
		token, err := b.token()
		if err != nil {
			return nil, err
		}
		if token != "" {
			req.Header.Set("Authorization", "Bearer "+token)
		}
	}
	return b.client.Do(req)
}

// token is the token to send; that of a file is read for each request, since it may be renewed.
func (b *hubBucket) token() (string, error) {
	if b.cfg.Token != "" || b.cfg.TokenFile == "" {
		return b.cfg.Token, nil
	}
	text, err := os.ReadFile(b.cfg.TokenFile)
	if err != nil {
		return "", &credentialsError{fmt.Errorf("the hub's token (HF_TOKEN_PATH): %w", err)}
	}
	return strings.TrimSpace(string(text)), nil
}

// hubRefusal describes a response that is none of the wanted ones, and closes it.
func hubRefusal(resp *http.Response) error {
	_ = resp.Body.Close() // the headers say why
	return &refusal{status: resp.StatusCode, code: resp.Header.Get("X-Error-Code"), message: resp.Header.Get("X-Error-Message")}
}
