// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package wait

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeflow/datacache/cacheserver/protocol"
)

const (
	planning = `{"state":"Planning","reason":"planning (1/2 files)"}`
	loading  = `{"state":"Loading","reason":"loading 40% (2/5 splits)","rows":200,"bytes":4000000,"splits":{"done":2,"total":5},
		"nodes":[{"index":0,"state":"Ready","splits":{"done":2,"total":2}},{"index":1,"state":"Loading","splits":{"done":0,"total":3}}]}`
	counted  = `{"state":"Loading","reason":"loading","counted":true,"splits":{"done":0,"total":5},"nodes":[{"index":0,"state":"Loading"},{"index":1,"state":%q}]}`
	ready    = `{"state":"Ready","reason":"ready","table":"db.t","snapshot":7,"rows":500,"bytes":9000000,"nodes":[{"index":0,"state":"Ready"},{"index":1,"state":"Ready"}]}`
	degraded = `{"state":"Degraded","reason":"data node 1 restarted, reloading"}`
	failed   = `{"state":"Failed","reason":"a.parquet: not a Parquet file"}`
)

// headThatSays serves one text after the other, repeating the last one. "!" stands for a response with status 503.
func headThatSays(t *testing.T, answers ...string) string {
	t.Helper()
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answer := answers[min(int(asked.Add(1)), len(answers))-1]
		if answer == "!" {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, answer)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// only is the head of the only cache.
func only(url string) []Head { return []Head{{URL: url}} }

// TestWaitUntilCounted waits for a cache that loads and knows its rows, with all data nodes.
func TestWaitUntilCounted(t *testing.T) {
	joined, missing := fmt.Sprintf(counted, "Loading"), fmt.Sprintf(counted, "Missing")
	for _, tt := range []struct {
		answers []string
		counted bool
		ends    bool
	}{
		{[]string{planning, missing, joined}, true, true}, {[]string{ready}, true, true},
		{[]string{joined}, false, false}, {[]string{loading}, true, false}, {[]string{missing}, true, false},
	} {
		err := UntilReady(t.Context(), Config{Heads: only(headThatSays(t, tt.answers...)), Counted: tt.counted, Timeout: 200 * time.Millisecond, Poll: time.Millisecond, Out: io.Discard})
		if (err == nil) != tt.ends {
			t.Errorf("answers %v, counted %t: %v, want an end: %t", tt.answers, tt.counted, err, tt.ends)
		}
	}
}

// TestWaitForADataset waits until a dataset is put into a cache that is ready.
func TestWaitForADataset(t *testing.T) {
	with := func(datasets string) string {
		return strings.Replace(ready, `"rows"`, `"datasets":[`+datasets+`],"rows"`, 1)
	}
	other, replaced := `{"name":"other","state":"Ready"}`, `{"name":"tok","state":"Replaced"}`
	lost, there := `{"name":"tok","state":"Failed","reason":"parts 3-4 are lost: put it again"}`, `{"name":"tok","state":"Ready"}`
	for _, tt := range []struct {
		answers []string
		ends    bool
		says    string
	}{
		{[]string{ready}, false, "waiting: for the dataset tok, which nobody has put yet; there are: none"},
		{[]string{loading, with(other + "," + replaced)}, false, "waiting: for the dataset tok, which nobody has put yet; there are: other, tok"},
		{[]string{with(lost)}, false, "waiting: dataset tok is Failed: parts 3-4 are lost: put it again"},
		{[]string{ready, with(other), with(replaced + "," + there)}, true, "ready: 500 rows"},
	} {
		var out strings.Builder
		heads := []Head{{URL: headThatSays(t, tt.answers...), Dataset: "tok"}}
		err := UntilReady(t.Context(), Config{Heads: heads, Timeout: 200 * time.Millisecond, Poll: time.Millisecond, Out: &out})
		if (err == nil) != tt.ends || !strings.Contains(out.String(), tt.says) {
			t.Errorf("answers %v: %v, want an end: %t, with %q in\n%s", tt.answers, err, tt.ends, tt.says, out.String())
		}
	}
}

func TestWait(t *testing.T) {
	tests := []struct {
		name    string
		answers []string
		lines   []string // parts of the output, in this order
		failed  string   // the reason in a *FailedError
	}{
		{name: "ready at once", answers: []string{ready},
			lines: []string{"ready: 500 rows, 9.0 MB of db.t (snapshot 7) in memory of 2 data nodes"}},
		{name: "all the way", answers: []string{"!", planning, loading, ready},
			lines: []string{"503 Service Unavailable", "planning: planning (1/2 files)",
				"loading 40% (2/5 splits), 200 rows, 4.0 MB; node 1 Loading 0/3", "ready: 500 rows"}},
		{name: "a node is lost on the way", answers: []string{loading, degraded, ready},
			lines: []string{"loading 40%", "degraded: data node 1 restarted, reloading", "ready: 500 rows"}},
		{name: "failed", answers: []string{loading, failed},
			lines: []string{"loading 40%", "failed: a.parquet: not a Parquet file"}, failed: "a.parquet: not a Parquet file"},
		{name: "files, which have no table and no rows",
			answers: []string{`{"state":"Pending","reason":"FluidMissing: install it"}`, `{"state":"Loading","reason":"DataLoad a-warm is Executing, 43% of the files are cached"}`, `{"state":"Ready","reason":"s3://b/f can be mounted by claim a"}`},
			lines:   []string{"pending: FluidMissing: install it", "loading: DataLoad a-warm is Executing, 43% of the files are cached\n", "ready: s3://b/f can be mounted by claim a after"}},
		{name: "nonsense before it is ready", answers: []string{"<html>", `{"a":1}`, ready},
			lines: []string{"answers no status", "ready: 500 rows"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out strings.Builder
			err := UntilReady(t.Context(), Config{Heads: only(headThatSays(t, tt.answers...)), Poll: time.Millisecond, Timeout: time.Minute, Out: &out})
			var cause *FailedError
			switch {
			case tt.failed == "" && err != nil:
				t.Errorf("ended with %v", err)
			case tt.failed != "" && (!errors.As(err, &cause) || cause.Reason != tt.failed):
				t.Errorf("ended with %v, want a FailedError of %q", err, tt.failed)
			}
			rest := out.String()
			for _, line := range tt.lines {
				_, after, found := strings.Cut(rest, line)
				if !found {
					t.Fatalf("no %q in what is left of\n%s", line, out.String())
				}
				rest = after
			}
		})
	}
}

// two are the heads of two caches.
func two(web, code string) []Head { return []Head{{Name: "web", URL: web}, {Name: "code", URL: code}} }

// TestWaitForTwo checks that the wait lasts until the slower of two caches is ready, and that lines begin with the cache's name.
func TestWaitForTwo(t *testing.T) {
	var out strings.Builder
	heads := two(headThatSays(t, loading, ready), headThatSays(t, "!", planning, loading, loading, loading, ready))
	if err := UntilReady(t.Context(), Config{Heads: heads, Poll: time.Millisecond, Timeout: time.Minute, Out: &out}); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{
		"  web: loading 40%", "  web: ready: 500 rows", "  code: waiting for the cache's head", "  code: planning", "  code: loading 40% (2/5 splits), 200 rows", "  code: ready: 500 rows",
	} {
		if !strings.Contains(out.String(), line) {
			t.Errorf("no %q in\n%s", line, out.String())
		}
	}
}

// TestWaitForTwoFails checks that the wait ends as soon as one of two caches has failed, and names it.
func TestWaitForTwoFails(t *testing.T) {
	for name, heads := range map[string][]Head{
		"web":  two(headThatSays(t, loading, failed), headThatSays(t, loading)),
		"code": two(headThatSays(t, ready), headThatSays(t, "!", loading, failed)),
	} {
		var out strings.Builder
		err := UntilReady(t.Context(), Config{Heads: heads, Poll: time.Millisecond, Timeout: time.Hour, Out: &out})
		var cause *FailedError
		if !errors.As(err, &cause) || cause.Cache != name || err.Error() != "the cache "+name+" failed: a.parquet: not a Parquet file" {
			t.Errorf("ended with %v, want a FailedError of %s", err, name)
		}
		if want := "  " + name + ": failed: a.parquet"; !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}

// TestTimeoutNamesCaches checks that the error names the caches that are not ready.
func TestTimeoutNamesCaches(t *testing.T) {
	var all []*waiter
	for _, name := range []string{"web", "code", "books"} {
		all = append(all, &waiter{lines: progressPrinter{name: name, out: io.Discard}})
	}
	all[0].lines.status(&protocol.Status{State: protocol.StateReady}, "", time.Now())
	all[1].lines.status(&protocol.Status{State: protocol.StatePlanning, Reason: "listing"}, "", time.Now())
	if got, want := timeout(time.Hour, all).Last, "code: planning: listing; books: the head has not been asked yet"; got != want {
		t.Errorf("the caches that are late: %q, want %q", got, want)
	}
}

func TestWaitRunsOut(t *testing.T) {
	err := UntilReady(t.Context(), Config{Heads: only(headThatSays(t, loading)), Poll: time.Millisecond, Timeout: 200 * time.Millisecond, Out: &strings.Builder{}})
	var late *TimeoutError
	if !errors.As(err, &late) {
		t.Fatalf("ended with %v, want a TimeoutError", err)
	}
	for _, part := range []string{"200ms", "READY_TIMEOUT"} {
		if !strings.Contains(late.Error(), part) {
			t.Errorf("%q does not say %q", late, part)
		}
	}
}

func TestWaitIsStopped(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := UntilReady(ctx, Config{Heads: only(headThatSays(t, loading)), Out: &strings.Builder{}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("ended with %v, want the context's error", err)
	}
}

func TestWaitForNobody(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	server.Close()
	var out strings.Builder
	err := UntilReady(t.Context(), Config{Heads: only(server.URL), Poll: time.Millisecond, Timeout: 200 * time.Millisecond, Out: &out})
	if !strings.Contains(out.String(), "waiting for the cache's head") {
		t.Errorf("said %q and ended with %v", out.String(), err)
	}
}

// TestNarratorKeepsItsPace checks that a load of which only numbers change is printed at intervals, with its rate and the time left.
func TestNarratorKeepsItsPace(t *testing.T) {
	var out strings.Builder
	begin := time.Unix(1_000_000, 0)
	n := progressPrinter{out: &out, every: 10 * time.Second, begin: begin}
	for second := range 21 {
		status := statusAfter(second)
		n.status(&status, "", begin.Add(time.Duration(second)*time.Second))
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 {
		t.Fatalf("%d lines, want one at 0, 10 and 20 s:\n%s", len(lines), out.String())
	}
	if want := "at 100 rows/s and 2.0 MB/s, 1m20s left"; !strings.Contains(lines[2], want) {
		t.Errorf("the last line is %q, want %q in it", lines[2], want)
	}
}

// statusAfter returns the status of a load of 100 splits that loads one per second: 100 rows, 2 MB.
func statusAfter(second int) protocol.Status {
	return protocol.Status{
		State: protocol.StateLoading, Reason: fmt.Sprintf("loading %d%%", second), Rows: int64(second) * 100, Bytes: int64(second) * 2e6,
		Splits: protocol.SplitStatus{Done: second, Total: 100},
	}
}
