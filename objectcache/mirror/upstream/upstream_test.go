// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package upstream

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

const text = "0123456789"

// twoServers returns a server that redirects to a second, which has text and refuses credentials. signed is the only path that the second
// accepts.
func twoServers(t *testing.T) (first *httptest.Server, redirects *atomic.Int32, signed *atomic.Value) {
	t.Helper()
	redirects, signed = &atomic.Int32{}, &atomic.Value{}
	signed.Store("/1")
	second := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "" || r.URL.Path != signed.Load() {
			http.Error(w, "credentials or a bad signature", http.StatusForbidden)
			return
		}
		http.ServeContent(w, r, "", time.Time{}, strings.NewReader(text))
	}))
	t.Cleanup(second.Close)
	first = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer x" {
			http.Error(w, "no", http.StatusUnauthorized)
			return
		}
		redirects.Add(1)
		http.Redirect(w, r, second.URL+signed.Load().(string), http.StatusFound) //nolint:forcetypeassert // a string is stored
	}))
	t.Cleanup(first.Close)
	return first, redirects, signed
}

func get(t *testing.T, url, credential string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", credential)
	return r
}

func TestRangeFollowsRedirects(t *testing.T) {
	t.Parallel()
	first, redirects, signed := twoServers(t)
	c := New()
	read := func(from, length int64) {
		t.Helper()
		body, err := c.Range(get(t, first.URL, "Bearer x"), from, length, int64(len(text)))
		if err != nil {
			t.Fatal(err)
		}
		defer body.Close()
		if got, err := io.ReadAll(body); err != nil || string(got) != text[from:from+length] {
			t.Errorf("%q, %v, want %q", got, err, text[from:from+length])
		}
	}
	read(2, 3)
	read(0, 10)
	read(9, 1)
	if n := redirects.Load(); n != 1 {
		t.Errorf("asked for the redirect %d times, want once", n)
	}
	signed.Store("/2") // the old signature has expired
	read(5, 5)
	if n := redirects.Load(); n != 2 {
		t.Errorf("asked for the redirect %d times, want twice", n)
	}
	if body, err := c.Range(get(t, first.URL, "Bearer y"), 0, 1, 10); err == nil {
		body.Close()
		t.Error("other credentials got what the first ones were redirected to")
	}
}

func TestRangeChecksTheAnswer(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		want   string // part of the error; empty: the bytes
	}{
		"a server without ranges": {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text) }, ""},
		"another size":            {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, text+"x") }, "has 11 bytes"},
		"another range": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Range", "bytes 0-2/10")
			w.WriteHeader(http.StatusPartialContent)
			_, _ = io.WriteString(w, text[:3])
		}, "Content-Range"},
		"a refusal": {func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusNotFound) }, "404"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := httptest.NewServer(test.answer)
			defer s.Close()
			body, err := New().Range(get(t, s.URL, ""), 3, 3, 10)
			if err != nil {
				if test.want == "" || !strings.Contains(err.Error(), test.want) {
					t.Errorf("%v, want %q", err, test.want)
				}
				return
			}
			defer body.Close()
			if got, err := io.ReadAll(body); test.want != "" || err != nil || string(got) != "345" {
				t.Errorf("%q, %v, want an error with %q or 345", got, err, test.want)
			}
		})
	}
}

// TestDocumentRedirects checks that redirects within the host are followed, with the fields of the answers on the way, and others not.
func TestDocumentRedirects(t *testing.T) {
	t.Parallel()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/inside":
			w.Header().Set("X-Repo-Commit", "c")
			http.Redirect(w, r, "/end", http.StatusTemporaryRedirect)
		case "/outside":
			w.Header().Set("X-Linked-Size", "5")
			http.Redirect(w, r, "http://elsewhere.invalid/", http.StatusFound)
		default:
			w.Header().Set("Etag", r.Header.Get("Authorization"))
		}
	}))
	t.Cleanup(s.Close)
	c := New()
	if d, err := c.Document(get(t, s.URL+"/inside", "x")); err != nil || d.Status != 200 || d.Header.Get("X-Repo-Commit") != "c" || d.Header.Get("Etag") != "x" {
		t.Errorf("%+v, %v", d, err)
	}
	if d, err := c.Document(get(t, s.URL+"/outside", "x")); err != nil || d.Status != 302 || d.Header.Get("X-Linked-Size") != "5" {
		t.Errorf("%+v, %v", d, err)
	}
}

func TestIsDown(t *testing.T) {
	t.Parallel()
	for status, want := range map[int]bool{400: false, 401: false, 403: false, 404: false, 408: true, 416: false, 429: true, 500: true, 503: true} {
		if got := IsDown(&Refused{Answer: Document{Status: status}}); got != want {
			t.Errorf("%s: %v, want %v", strconv.Itoa(status), got, want)
		}
	}
	if IsDown(nil) || IsDown(context.Canceled) || !IsDown(errors.New("refused connection")) {
		t.Error("without an answer, only an error other than cancellation means that upstream is down")
	}
}

// TestDowngrades checks that a redirect from https to http is not followed, even without credentials: its address may be signed.
func TestDowngrades(t *testing.T) {
	t.Parallel()
	plain := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("asked in plain text: %s", r.URL) }))
	t.Cleanup(plain.Close)
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, plain.URL+"/blob?signature=secret", http.StatusTemporaryRedirect)
	}))
	t.Cleanup(s.Close)
	c := New()
	c.ranges.Transport = s.Client().Transport
	for what, ask := range map[string]func() error{
		"range": func() error { _, err := c.Range(get(t, s.URL, "Bearer x"), 0, 1, 10); return err },
		"head":  func() error { _, err := c.Head(get(t, s.URL, "Bearer x")); return err },
	} {
		err := ask()
		if want := s.URL + " redirects to plain text at " + plain.URL + ", which gets no credentials"; err == nil || err.Error() != want || IsDown(err) {
			t.Errorf("%s: %v, want %s, and that upstream is not down", what, err, want)
		}
	}
}
