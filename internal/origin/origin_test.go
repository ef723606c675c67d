// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package origin

import (
	"errors"
	"io"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

func parse(t *testing.T, text string) *url.URL {
	t.Helper()
	u, err := url.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

func TestSame(t *testing.T) {
	t.Parallel()
	tests := []struct {
		a, b            string
		same, downgrade bool
	}{
		{"https://cat/a", "https://cat/b?c", true, false},
		{"https://cat", "https://CAT:443", true, false},
		{"http://cat:80", "http://cat", true, false},
		{"http://[::1]:1", "http://[::1]:1/x", true, false},
		{"https://cat", "http://cat", false, true},
		{"https://cat", "http://cat:443", false, true},
		{"http://cat", "https://cat", false, false},
		{"https://cat", "https://cat:8443", false, false},
		{"https://cat", "https://sub.cat", false, false},
		{"https://cat", "https://cat.evil", false, false},
		{"https://cat", "https://cat@evil", false, false},
	}
	for _, test := range tests {
		a, b := parse(t, test.a), parse(t, test.b)
		if got := Same(a, b); got != test.same {
			t.Errorf("%s and %s are of one origin = %v, want %v", a, b, got, test.same)
		}
		if got := IsDowngrade(a, b); got != test.downgrade {
			t.Errorf("from %s to %s is a downgrade = %v, want %v", a, b, got, test.downgrade)
		}
	}
}

// redirecting is a transport that answers requests to /from by a redirect with a status, and notes all other requests.
type redirecting struct {
	status int
	to     string
	sent   []string
}

func (d *redirecting) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")), Request: r}
	if r.URL.Path == "/from" {
		answer.StatusCode = d.status
		answer.Header.Set("Location", d.to)
		return answer, nil
	}
	d.sent = append(d.sent, r.URL.String())
	return answer, nil
}

func TestTransport(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		only []string // of Transport
		to   string
		want string // part of the error; empty: the redirect is followed
	}{
		"the same server":             {nil, "https://cat/to", ""},
		"a path":                      {nil, "/to", ""},
		"another server":              {nil, "https://evil/to", "https://cat leads to https://evil, which gets no credentials"},
		"another port":                {nil, "https://cat:1/to", "https://cat leads to https://cat:1, "},
		"plain text":                  {nil, "http://cat/to", "https://cat leads to http://cat, "},
		"between two that are known":  {[]string{"https://cat", "https://tokens"}, "https://tokens/to", "https://cat leads to https://tokens, "},
		"within one of several known": {[]string{"https://tokens", "https://cat"}, "https://cat/to", ""},
		"none of the known ones":      {[]string{"https://tokens"}, "", "https://tokens leads to https://cat, "},
	}
	for name, test := range tests {
		for _, status := range []int{301, 302, 303, 307, 308} {
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				base := &redirecting{status: status, to: test.to}
				via := Transport{Base: base}
				for _, u := range test.only {
					via.Only = append(via.Only, parse(t, u))
				}
				r, err := http.NewRequestWithContext(t.Context(), method, "https://cat/from", strings.NewReader("body"))
				if err != nil {
					t.Fatal(err)
				}
				answer, err := (&http.Client{Transport: via}).Do(r)
				if err == nil {
					_ = answer.Body.Close()
				}
				switch {
				case test.want == "" && (err != nil || len(base.sent) != 1):
					t.Errorf("%s, %s, %d: %v, sent %q", name, method, status, err, base.sent)
				case test.want != "" && (!errors.Is(err, ErrElsewhere) || !strings.Contains(err.Error(), test.want) || len(base.sent) != 0):
					t.Errorf("%s, %s, %d: %v, sent %q, want %q and nothing sent", name, method, status, err, base.sent, test.want)
				}
			}
		}
	}
}
