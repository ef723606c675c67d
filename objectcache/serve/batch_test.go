// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"archive/tar"
	"bufio"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/objectcache/router"
)

// askBatch requests keys and returns an entry for each: "key=body", or "key!status" if it is missing.
func askBatch(t *testing.T, address, bucket, body string) (status int, entries []string) {
	t.Helper()
	conn := dial(t, address)
	fmt.Fprintf(conn, "POST /v1/objects/%s?batch HTTP/1.1\r\nHost: cache\r\n%s\r\nContent-Length: %d\r\n\r\n%s", bucket, asA, len(body), body)
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	if response.StatusCode != 200 {
		return response.StatusCode, nil
	}
	for archive := tar.NewReader(response.Body); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return response.StatusCode, entries
		}
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		key, encoded := header.PAXRecords["DATACACHE.key"]
		if !encoded {
			key = strings.TrimPrefix(header.Name, "__404__/")
		}
		if missing, ok := header.PAXRecords["DATACACHE.status"]; ok {
			entries = append(entries, key+"!"+missing)
			continue
		}
		entries = append(entries, key+"="+string(text))
	}
}

func TestBatch(t *testing.T) {
	t.Parallel()
	servers, _ := trio(t)
	large := strings.Repeat("large", batchBuffer/5+1)
	bodies := map[string]string{"//a": "odd", "..": "dots", "%20/é": "escapes", "empty": "", "large": large}
	for i := range 100 {
		bodies[fmt.Sprint("key/", i)] = fmt.Sprint("body ", i)
	}
	var keys, want []string
	for key, body := range bodies {
		if got := ask(t, servers[0].address, "PUT", "/v1/objects/open/"+key, body, asA); got.Status != 201 {
			t.Fatalf("%s: %+v", key, got)
		}
		keys, want = append(keys, key, "not/"+key), append(want, key+"="+body, "not/"+key+"!404")
	}
	keys, want = append(keys, keys[0]), append(want, want[0]) // twice
	for _, s := range servers {
		status, got := askBatch(t, s.address, "open", strings.Join(keys, "\n"))
		if diff := cmp.Diff(want, got); status != 200 || diff != "" {
			t.Errorf("%d (-want +got):\n%s", status, diff)
		}
	}
}

// TestBatchWithoutAnOwner checks that a batch reports the keys of a node that does not respond and returns the others.
func TestBatchWithoutAnOwner(t *testing.T) {
	t.Parallel()
	gone := listen(t)
	gone.Close()
	m := start(t, "one")
	m.router.Set([]router.Member{{Name: "one", Address: m.address}, {Name: "two", Address: gone.Addr().String()}})
	var keys, want []string
	for i := range 50 {
		key := fmt.Sprint(i)
		keys = append(keys, key)
		if _, elsewhere := m.router.Elsewhere("open", key); elsewhere {
			want = append(want, key+"!503")
			continue
		}
		if got := ask(t, m.address, "PUT", "/v1/objects/open/"+key, "body", asA); got.Status != 201 {
			t.Fatal(got)
		}
		want = append(want, key+"=body")
	}
	_, got := askBatch(t, m.address, "open", strings.Join(keys, "\n")+"\n")
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestBatchRefuses(t *testing.T) {
	t.Parallel()
	m := start(t, "one")
	for name, test := range map[string]struct {
		bucket, body string
		want         int
	}{
		"another's bucket":   {"none", "key", 403},
		"no keys":            {"open", "", 400},
		"an empty key":       {"open", "a\n\nb", 400},
		"a slash at the end": {"open", "a\nb/", 400},
		"a long key":         {"open", strings.Repeat("k", maxKey+1), 400},
		"too many keys":      {"open", strings.Repeat("k\n", maxBatchKeys+1), 413},
		"too many bytes":     {"open", strings.Repeat("k", maxBatchBytes+1), 413},
	} {
		if status, _ := askBatch(t, m.address, test.bucket, test.body); status != test.want {
			t.Errorf("%s: %d, want %d", name, status, test.want)
		}
	}
	if got := ask(t, m.address, "GET", "/v1/objects/open?batch", "", asA); got.Status != 405 {
		t.Errorf("GET: %d, want 405", got.Status)
	}
	if got := ask(t, m.address, "POST", "/v1/objects/open?batch", ""); got.Status != 401 {
		t.Errorf("without a token: %d, want 401", got.Status)
	}
}
