// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package overview

import (
	"fmt"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// cacheIn returns a DataCache in a state that it has had for an hour.
func cacheIn(namespace, name string, state v1alpha1.State) v1alpha1.DataCache {
	dc := v1alpha1.DataCache{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1alpha1.DataCacheSpec{Arrow: &v1alpha1.ArrowCache{Table: "demo.reviews", DataNodes: 4}},
		Status:     v1alpha1.DataCacheStatus{State: state},
	}
	if state != "" {
		dc.Status.Conditions = []metav1.Condition{
			{Type: v1alpha1.ConditionDegraded, LastTransitionTime: metav1.NewTime(now.Add(-2 * time.Hour))},
			{Type: v1alpha1.ConditionReady, Reason: "Loaded", Message: "because", LastTransitionTime: metav1.NewTime(now.Add(-time.Hour))},
		}
	}
	return dc
}

func TestParseFilter(t *testing.T) {
	t.Parallel()
	for query, want := range map[string]Filter{
		"":                                     {},
		"?namespace=team-a":                    {Namespace: "team-a"},
		"?state=&other=1":                      {},
		"?state=Failed&state=Ready":            {States: []v1alpha1.State{v1alpha1.StateFailed, v1alpha1.StateReady}},
		"?namespace=a&state=Ready&state=Ready": {Namespace: "a", States: []v1alpha1.State{v1alpha1.StateReady}},
	} {
		parsed, err := url.ParseQuery(strings.TrimPrefix(query, "?"))
		if err != nil {
			t.Fatal(err)
		}
		got, err := ParseFilter(parsed)
		if diff := cmp.Diff(want, got); diff != "" || err != nil {
			t.Errorf("%s: %v (-want +got)\n%s", query, err, diff)
		}
		again, err := url.ParseQuery(strings.TrimPrefix(got.Query(), "?"))
		if err != nil {
			t.Fatal(err)
		}
		if back, err := ParseFilter(again); err != nil || cmp.Diff(got, back) != "" {
			t.Errorf("%s becomes %s, which is %+v (%v)", query, got.Query(), back, err)
		}
	}
	for query, want := range map[string]string{
		"state=ready":                         `state: "ready" is none of Failed, Degraded, Pending, Planning, Loading, Ready, Released`,
		"namespace=" + url.QueryEscape("<b>"): `namespace: "<b>" is not the name of a namespace`,
	} {
		parsed, err := url.ParseQuery(query)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseFilter(parsed); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", query, err, want)
		}
	}
}

func TestTroubleComesFirst(t *testing.T) {
	t.Parallel()
	caches := []v1alpha1.DataCache{
		cacheIn("b", "one", v1alpha1.StateReady), cacheIn("a", "one", v1alpha1.StateReleased), cacheIn("c", "one", v1alpha1.StateFailed),
		cacheIn("b", "two", v1alpha1.StateFailed), cacheIn("b", "three", v1alpha1.StateLoading), cacheIn("a", "new", ""), cacheIn("z", "one", v1alpha1.StateDegraded),
	}
	p := pageOf(Filter{}, "", caches, now)
	var got []string
	for _, r := range p.Rows {
		got = append(got, r.Namespace+"/"+r.Name+" "+r.State+" "+r.Tone)
	}
	want := []string{"b/two Failed bad", "c/one Failed bad", "z/one Degraded warn", "a/new Pending busy", "b/three Loading busy", "b/one Ready good", "a/one Released idle"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if p.Badge != "3 of 7 need somebody" || p.Tone != "bad" {
		t.Errorf("it says %s: %s", p.Tone, p.Badge)
	}
	p = pageOf(Filter{Namespace: "b", States: []v1alpha1.State{v1alpha1.StateFailed}}, "", slices.Clone(caches[:1]), now)
	if len(p.Rows) != 0 || p.Badge != "1 Ready, 0 Released" || p.Empty != "None is in this state." || p.Up != "?state=Failed" {
		t.Errorf("without a Failed one: %+v", p)
	}
	wantChoices := []choice{{"All", 1, "?namespace=b", false}, {"Failed", 0, "?namespace=b&state=Failed", true}, {"Ready", 1, "?namespace=b&state=Ready", false}}
	if diff := cmp.Diff(wantChoices, p.Choices); diff != "" {
		t.Errorf("choices (-want +got)\n%s", diff)
	}
}

func TestSummary(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		states []v1alpha1.State
		want   string
	}{
		{nil, "idle: No caches"},
		{[]v1alpha1.State{v1alpha1.StateReady, v1alpha1.StateReleased, v1alpha1.StateReady}, "good: 2 Ready, 1 Released"},
		{[]v1alpha1.State{v1alpha1.StateReady, v1alpha1.StatePlanning, ""}, "busy: 2 of 3 not loaded yet"},
		{[]v1alpha1.State{v1alpha1.StateLoading, v1alpha1.StateDegraded}, "warn: 1 of 2 need somebody"},
		{[]v1alpha1.State{v1alpha1.StateFailed, v1alpha1.StateDegraded}, "bad: 2 of 2 need somebody"},
	} {
		var caches []v1alpha1.DataCache
		for i, state := range tt.states {
			caches = append(caches, cacheIn("a", fmt.Sprint(i), state))
		}
		if p := pageOf(Filter{}, "", caches, now); p.Tone+": "+p.Badge != tt.want {
			t.Errorf("%v is %s: %s, want %s", tt.states, p.Tone, p.Badge, tt.want)
		}
	}
}

func TestRow(t *testing.T) {
	t.Parallel()
	dc := cacheIn("team-a", "train", v1alpha1.StateReady)
	s := &dc.Status
	s.Rows, s.Bytes, s.LoadedPercent, s.Replicas, s.ReadyReplicas, s.Users = new(int64(1234567)), new(int64(3<<30)), new(int32(100)), 2, 1, 3
	want := row{
		Namespace: "team-a", NamespaceURL: "?namespace=team-a&state=Ready", Name: "train", Source: "demo.reviews", State: "Ready", Tone: "good",
		Since: now.Add(-time.Hour), Age: "60m", Reason: "Loaded", Message: "because", Percent: new(int32(100)), Rows: "1,234,567", Bytes: "3.0 GiB",
		Copies: "1 of 2", Nodes: "4", Users: 3,
	}
	if diff := cmp.Diff(want, rowOf(&dc, Filter{States: []v1alpha1.State{v1alpha1.StateReady}}, now)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	files := v1alpha1.DataCache{Spec: v1alpha1.DataCacheSpec{Fluid: &v1alpha1.FluidCache{}}}
	want = row{NamespaceURL: "?", Source: "files", State: "Pending", Tone: "busy", Message: "no manager has looked at it yet"}
	if diff := cmp.Diff(want, rowOf(&files, Filter{}, now)); diff != "" {
		t.Errorf("a new one (-want +got)\n%s", diff)
	}
	failed := cacheIn("a", "b", v1alpha1.StateFailed)
	failed.Status.LastFailure = &v1alpha1.Failure{Time: metav1.NewTime(now.Add(-time.Minute))}
	if got := rowOf(&failed, Filter{}, now).Age; got != "60s" {
		t.Errorf("it failed %s ago, want 60s", got)
	}
}

// hostile is a text that must neither become markup nor end an attribute.
const hostile = `<img src=x onerror=alert(1)>"'` + "`{{.}}</script>"

func TestTextsAreNotMarkup(t *testing.T) {
	t.Parallel()
	dc := cacheIn(hostile, hostile, v1alpha1.StateReady)
	dc.Spec.Arrow.Table, dc.Status.State, dc.Status.LoadedPercent = hostile, v1alpha1.StateReady, new(int32(0))
	dc.Status.Conditions[1].Reason, dc.Status.Conditions[1].Message = hostile, hostile
	many := slices.Repeat([]v1alpha1.DataCache{dc}, maxRows+2)
	w := httptest.NewRecorder()
	Write(w, Filter{Namespace: hostile}, "caches/", many)
	body := w.Body.String()
	if strings.Contains(body, "<img") || strings.Contains(body, `"'`) || strings.Contains(body, "</script>\"") {
		t.Error("a name became markup")
	}
	if got, want := strings.Count(body, "&lt;img src=x onerror=alert(1)&gt;"), 5*maxRows; got < want {
		t.Errorf("%d names as text, want %d", got, want)
	}
	for _, part := range []string{"And 2 more", `href="caches/page.css"`, `src="caches/page.js"`, `width="0"`, "0 %"} {
		if !strings.Contains(body, part) {
			t.Errorf("the page has no %s", part)
		}
	}
	h := w.Result().Header
	if got := h.Get("Content-Security-Policy"); !strings.HasPrefix(got, "default-src 'self';") || h.Get("Cache-Control") != "no-store" {
		t.Errorf("headers: %v", h)
	}
	if strings.Contains(body, "<style") || strings.Contains(body, "style=") || strings.Contains(body, "<script>") {
		t.Error("the page has inline style or script, which its policy forbids")
	}
}
