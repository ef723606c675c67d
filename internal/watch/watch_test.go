// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bufio"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/internal/redact"
)

// subject is a Source whose state tests set.
type subject struct {
	mu     sync.Mutex
	view   View
	sample Sample
	views  int
}

func (*subject) Series() []Series {
	return []Series{{Name: "rows", Chart: "Rows a second", Unit: Count, Rate: true}, {Name: "used", Chart: "Memory", Unit: Bytes}}
}

func (s *subject) Sample() Sample {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sample
}

func (s *subject) View() View {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.views++
	return s.view
}

func (s *subject) set(view View) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.view = view
}

func serve(t *testing.T, s *subject) (*Page, string) {
	t.Helper()
	if s.sample.Values == nil {
		s.sample.Values = []float64{0, 0}
	}
	p := New(s)
	mux := http.NewServeMux()
	p.Register(mux)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	t.Cleanup(server.CloseClientConnections)
	return p, server.URL
}

func get(t *testing.T, url string) *http.Response {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = response.Body.Close() })
	return response
}

func text(t *testing.T, url string) string {
	t.Helper()
	body, err := io.ReadAll(get(t, url).Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// hostile is a text that must neither become markup nor end a string.
const hostile = `<img src=x onerror=alert(1)>"'` + "`{{.}}</script>"

func full() View {
	cells := []Cell{Text(hostile), Toned(hostile, Bad), {Text: hostile, Bar: &Bar{1, 2}}, {Text: hostile, Strip: []Piece{{0, .5, Good}}}}
	return View{
		Role: "cache", Name: hostile, State: "Loading", Reason: hostile, Tone: Busy, Done: 1, Total: 4, Unit: "splits",
		Waits: []Wait{{For: hostile, Fix: hostile}}, Meters: []Meter{{Name: hostile, Used: 1, Peak: 2, Limit: 3}},
		Tables: []Table{{ID: "one", Title: hostile, Note: hostile, Head: []string{hostile}, Rows: [][]Cell{cells}}, {ID: "two", Empty: hostile}},
		Facts:  []Fact{{Name: hostile, Value: hostile}, {Name: "list", List: []string{hostile}}},
	}
}

func TestTextsAreNotMarkup(t *testing.T) {
	s := &subject{view: full(), sample: Sample{Values: []float64{1, 1}, States: []State{{Who: hostile, Is: hostile, Reason: hostile, Tone: Bad}}}}
	p, url := serve(t, s)
	p.sample(time.Now())
	for _, path := range []string{"/", "/report.html"} {
		body := text(t, url+path)
		if strings.Contains(body, "<img") || strings.Contains(body, "</script>\"") || strings.Contains(body, `"'`) {
			t.Errorf("%s: a name became markup", path)
		}
		if got := strings.Count(body, "&lt;img src=x onerror=alert(1)&gt;"); got < 19 {
			t.Errorf("%s: %d names as text, want all 19", path, got)
		}
	}
}

func TestCredentialsAreRedacted(t *testing.T) {
	redact.Hide("hunter2-hunter2")
	secret := `s3://key:hunter2-hunter2@bucket`
	v := View{
		Name: secret, Reason: secret, Waits: []Wait{{For: secret}}, Facts: []Fact{{Value: secret}, {List: []string{secret}}},
		Tables: []Table{{Rows: [][]Cell{{Text(secret)}}}},
	}
	s := &subject{view: v, sample: Sample{Values: []float64{0, 0}, States: []State{{Who: "cache", Is: "Failed", Reason: secret}}}}
	p, url := serve(t, s)
	p.listeners.Add(1) // as if there were one, so that messages are made
	p.sample(time.Now())
	var all strings.Builder
	for _, path := range []string{"/", "/report.html", "/history.json"} {
		all.WriteString(text(t, url+path))
	}
	for _, section := range p.sections {
		all.Write(section.message)
	}
	if strings.Contains(all.String(), "hunter2") {
		t.Error("a page tells a secret")
	}
	if got := strings.Count(all.String(), "***"); got < 4*7 {
		t.Errorf("%d redacted texts, want %d", got, 4*7)
	}
}

func TestPolicyAndMethods(t *testing.T) {
	_, url := serve(t, &subject{view: full()})
	for _, path := range []string{"/", "/page.css", "/page.js", "/icon.svg", "/history.json", "/report.html"} {
		response := get(t, url+path)
		if response.StatusCode != http.StatusOK {
			t.Errorf("GET %s: %s", path, response.Status)
		}
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err = http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = response.Body.Close()
		if response.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("POST %s: %s, want 405", path, response.Status)
		}
	}
	if got := get(t, url+"/").Header.Get("Content-Security-Policy"); !strings.HasPrefix(got, "default-src 'self';") || strings.Contains(got, "unsafe") {
		t.Errorf("policy of the page: %s", got)
	}
	if body := text(t, url+"/"); strings.Contains(body, "<style") || strings.Contains(body, "style=") || strings.Contains(body, "<script>") {
		t.Error("the page has inline style or script, which its policy forbids")
	}
	if body := text(t, url+"/report.html"); strings.Contains(body, "<script") || strings.Contains(body, "<link") || !strings.Contains(body, "<style>") {
		t.Error("the report is not one file without scripts")
	}
}

// event reads the next message of a stream, with the sections that changed.
func event(t *testing.T, stream *bufio.Reader) map[string]string {
	t.Helper()
	for {
		line, err := stream.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		if body, ok := strings.CutPrefix(line, "data: "); ok {
			sections := map[string]string{}
			if err := json.Unmarshal([]byte(body), &sections); err != nil {
				t.Fatal(err)
			}
			return sections
		}
	}
}

func TestListenersGetWhatChanged(t *testing.T) {
	s := &subject{view: full()}
	p, url := serve(t, s)
	now := time.Now()
	p.sample(now)
	if s.views != 0 {
		t.Fatal("a view was made although nobody looks")
	}
	response := get(t, url+"/events")
	stream := bufio.NewReader(response.Body)
	if _, err := stream.ReadString('\n'); err != nil { // it listens
		t.Fatal(err)
	}
	p.sample(now.Add(time.Second))
	if got := event(t, stream); len(got) != len(sections) {
		t.Errorf("the first message has %d sections, want all %d", len(got), len(sections))
	}
	view := full()
	view.State, view.Tone = "Degraded", Warn
	s.set(view)
	p.sample(now.Add(2 * time.Second))
	got := event(t, stream)
	if !strings.Contains(got["state"], "Degraded") || len(got) != 1 {
		t.Errorf("the message after a change of state is %v", got)
	}
}

func TestThe65thListenerIsRefused(t *testing.T) {
	p, url := serve(t, &subject{view: full()})
	for range maxListeners {
		if response := get(t, url+"/events"); response.StatusCode != http.StatusOK {
			t.Fatal(response.Status)
		}
	}
	last := get(t, url+"/events")
	if last.StatusCode != http.StatusServiceUnavailable || last.Header.Get("Retry-After") == "" {
		t.Errorf("listener 65: %s", last.Status)
	}
	if got := p.listeners.Load(); got != maxListeners {
		t.Errorf("%d listeners counted, want %d", got, maxListeners)
	}
}

func TestHistory(t *testing.T) {
	h := newHistory((&subject{}).Series())
	at := time.Unix(1000, 0)
	for i := range 1000 {
		h.add(Sample{Values: []float64{float64(i * 5), float64(i)}, Done: int64(i), Total: 2000}, at.Add(time.Duration(i)*time.Second))
	}
	rows, used := h.values(0), h.values(1)
	if len(rows) != seconds || rows[0] != 5 || rows[seconds-1] != 5 {
		t.Errorf("rates: %d values, first %v, last %v", len(rows), rows[0], rows[len(rows)-1])
	}
	if used[0] != 100 || used[seconds-1] != 999 {
		t.Errorf("values from %v to %v, want 100 to 999", used[0], used[len(used)-1])
	}
	if left, ok := h.left(); !ok || left != 1001*time.Second {
		t.Errorf("%v left (%v), want 1001 s", left, ok)
	}
	h.add(Sample{Values: []float64{3, 1}, Done: 0, Total: 2000}, at.Add(1000*time.Second)) // it began anew
	if got := h.values(0); got[seconds-1] != 0 {
		t.Errorf("rate after a new start: %v, want 0", got[seconds-1])
	}
	if _, ok := h.left(); ok {
		t.Error("time left without progress")
	}
}

// TestSpike checks that the axis of a chart does not say 0 below a line that is higher.
func TestSpike(t *testing.T) {
	h := newHistory([]Series{{Name: "requests", Chart: "Requests a second", Unit: Count, Rate: true}})
	for i, total := range []float64{0, 0, 0, 1, 1, 1, 1} {
		h.add(Sample{Values: []float64{total}}, time.Unix(int64(i), 0))
	}
	if c := h.charts()[0]; c.Top != "0.2" {
		t.Errorf("the axis of one request in 5 s ends at %s, want 0.2", c.Top)
	}
}

func TestEventsAreChangesOfState(t *testing.T) {
	h := newHistory((&subject{}).Series())
	at := time.Unix(1000, 0)
	for i, is := range []string{"Loading", "Loading", "Ready", "Degraded"} {
		h.add(Sample{Values: []float64{0, 0}, States: []State{{Who: "cache", Is: is, Reason: is + "!"}}}, at.Add(time.Duration(i)*time.Second))
	}
	want := []Event{
		{Time: at.Add(3 * time.Second), Who: "cache", From: "Ready", To: "Degraded", Reason: "Degraded!"},
		{Time: at.Add(2 * time.Second), Who: "cache", From: "Loading", To: "Ready", Reason: "Ready!"},
		{Time: at, Who: "cache", To: "Loading", Reason: "Loading!"},
	}
	if diff := cmp.Diff(want, h.newest()); diff != "" {
		t.Error(diff)
	}
	for i := range 2 * maxEvents {
		h.add(Sample{Values: []float64{0, 0}, States: []State{{Who: "cache", Is: string(rune('A' + i%2))}}}, at)
	}
	if got := len(h.newest()); got != maxEvents {
		t.Errorf("%d events, want the last %d", got, maxEvents)
	}
}

func TestRates(t *testing.T) {
	var r Rates
	at := time.Unix(1000, 0)
	for i := range 30 {
		r.Add(at.Add(time.Duration(i)*time.Second), "a", float64(10*i))
	}
	if got := r.Of("a")[0]; got < 9.9 || got > 10.1 {
		t.Errorf("10 a second are %v", got)
	}
	r.Add(at.Add(30*time.Second), "a", 0) // a counter that starts anew
	if got := r.Of("a")[0]; got < 0 {
		t.Errorf("a negative rate: %v", got)
	}
	r.Forget(at.Add(31 * time.Second))
	if r.Of("a") != nil {
		t.Error("a key that is gone is kept")
	}
}

func TestFormats(t *testing.T) {
	for got, want := range map[string]string{
		formatDuration(3 * time.Second): "3 s", formatDuration(125 * time.Second): "2 min 5 s", formatDuration(2*time.Hour + 5*time.Minute): "2 h 5 min",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
