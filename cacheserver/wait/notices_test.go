// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package wait

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kubeflow/datacache/cacheserver/protocol"
)

// post sends a notice and returns the status code of the response.
func post(t *testing.T, url, notice string) int {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader(notice))
	if err != nil {
		t.Fatal(err)
	}
	answer, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	return answer.StatusCode
}

// TestWaitTellsNotices checks that a notice of the controller is printed on a line of its own while the head does not respond, and
// that it does not end the wait.
func TestWaitTellsNotices(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	url := "http://" + listener.Addr().String()
	asked := 0
	headURL := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		switch asked++; asked {
		case 1:
			w.WriteHeader(http.StatusServiceUnavailable)
			if code := post(t, url+"/notice", "FailedCreate: exceeded quota\x1b[2J\nready: 5 rows"); code != http.StatusNoContent {
				t.Errorf("the notice is answered with %d", code)
			}
		case 2:
			w.WriteHeader(http.StatusServiceUnavailable)
		case 3:
			fmt.Fprintln(w, loading)
			if code := post(t, url+"/other", "x"); code != http.StatusNotFound {
				t.Errorf("another path is answered with %d", code)
			}
		default:
			fmt.Fprintln(w, ready)
		}
	}))
	defer headURL.Close()
	var out strings.Builder
	if err := UntilReady(t.Context(), Config{Heads: only(headURL.URL), Poll: time.Millisecond, Timeout: time.Minute, Out: &out, Notices: listener}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range []string{
		"waiting for the cache: FailedCreate: exceeded quota?[2J ready: 5 rows", "; the controller says: FailedCreate: exceeded quota", "ready: 500 rows",
	} {
		at := len(lines) - 3 + i
		if at < 0 || !strings.Contains(lines[at], want) {
			t.Errorf("line %d is not %q of\n%s", at, want, out.String())
		}
	}
	if _, err := net.Listen("tcp", listener.Addr().String()); err != nil {
		t.Errorf("UntilReady left its listener open: %v", err)
	}
}

// TestPrinterTellsNoticesAtOnce checks that a notice is printed at once, even shortly after another line.
func TestPrinterTellsNoticesAtOnce(t *testing.T) {
	var out strings.Builder
	now := time.Unix(1_000_000, 0)
	n := progressPrinter{out: &out, every: time.Hour, begin: now}
	for _, notice := range []string{"", "", "no room", "no room", "PodsStarting: 2 of 3 pods run"} {
		n.unreachable(http.ErrServerClosed, notice, now)
	}
	for _, notice := range []string{"no room", "no room", ""} {
		n.status(&protocol.Status{State: protocol.StatePlanning, Reason: "planning"}, notice, now)
	}
	want := "waiting for the cache's head: http: Server closed|waiting for the cache: no room|waiting for the cache: PodsStarting: 2 of 3 pods run|" +
		"planning: planning; the controller says: no room|planning: planning"
	var got []string
	for line := range strings.Lines(out.String()) {
		got = append(got, strings.TrimSpace(line[len("15:04:05"):]))
	}
	if strings.Join(got, "|") != want {
		t.Errorf("lines are %q, want %q", got, want)
	}
}

// TestNoticesNameTheirCache checks which part of a notice each of several caches gets.
func TestNoticesNameTheirCache(t *testing.T) {
	for text, want := range map[string][2]string{ // for web and for code
		"":                           {"", ""},
		"web: no room":               {"no room", ""},
		"web: no room\ncode: a: b\t": {"no room", "a: b"},
		"no cache: quota":            {"no cache: quota", "no cache: quota"},
		"refused\x1b: x\nweb: mine":  {"mine", "refused?: x"},
		"website: none":              {"website: none", "website: none"},
	} {
		n := &notices{caches: []string{"web", "code"}}
		n.last.Store(text)
		if got := [2]string{n.of("web"), n.of("code")}; got != want {
			t.Errorf("%q: web and code are told %q, want %q", text, got, want)
		}
		if got := n.of(""); got != oneLine(text) {
			t.Errorf("%q: the only cache is told %q", text, got)
		}
	}
}
