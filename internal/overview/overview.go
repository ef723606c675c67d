// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package overview draws the page that lists DataCaches, those that want attention first. It shows nothing but what their metadata, spec
// and status say. Who may see which is decided by its users: the manager (package reviewed) and kubectl's plugin.
package overview

import (
	"bytes"
	"cmp"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/view"
	"github.com/kubeflow/datacache/internal/webpage"
	"github.com/kubeflow/datacache/internal/words"
)

// maxRows is the number of DataCaches that a page lists. Those that are left out are in the best state.
const maxRows = 500

//go:embed overview.html
var assets embed.FS

var templates = template.Must(template.New("").ParseFS(assets, "overview.html"))

// Write answers a request with the page of the caches that the filter admits. caches are those that the sender may see, in the filter's
// namespace and in any state; they are only read. assets is the URL of the folder of webpage's files, relative to the page: empty, or
// with a slash at its end.
func Write(w http.ResponseWriter, f Filter, assets string, caches []v1alpha1.DataCache) {
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, "overview.html", pageOf(f, assets, caches, time.Now())); err != nil {
		panic(fmt.Sprintf("template overview.html: %v", err)) // a fault of the template itself, which the tests would have found
	}
	webpage.Write(w, webpage.Policy, b.Bytes())
}

// page is the data of the template.
type page struct {
	Assets  string
	Time    time.Time
	Where   string // which namespaces it is about
	Up      string // URL without the filter's namespace; empty: it has none
	Tone    string
	Badge   string
	Choices []choice
	Rows    []row
	More    int // caches that are left out
	Empty   string
}

// choice is a link to the caches in a state, or in any.
type choice struct {
	Text   string
	Count  int
	URL    string
	Chosen bool
}

// row is a DataCache. Texts are empty if what they say is not known.
type row struct {
	Namespace, NamespaceURL, Name, Source string
	State, Tone                           string
	Since                                 time.Time // zero: not known
	Age                                   string    // since Since
	Reason, Message                       string
	Percent                               *int32
	Rows, Bytes                           string
	Copies, Nodes                         string
	Users                                 int32
}

func pageOf(f Filter, assets string, caches []v1alpha1.DataCache, now time.Time) page {
	p := page{Assets: assets, Time: now.UTC(), Where: "in all namespaces", Empty: "There is none that you may list."}
	if f.Namespace != "" {
		p.Where, p.Up = "in "+f.Namespace, Filter{States: f.States}.Query()
	}
	counts, needs := map[v1alpha1.State]int{}, 0
	var shown []*v1alpha1.DataCache
	for i := range caches {
		is := view.Of(&caches[i])
		counts[is.State]++
		if is.Needs {
			needs++
		}
		if f.has(is.State) {
			shown = append(shown, &caches[i])
		}
	}
	slices.SortFunc(shown, func(a, b *v1alpha1.DataCache) int {
		return cmp.Or(rank(a)-rank(b), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	p.Tone, p.Badge = summary(counts, needs, len(caches))
	p.Choices = choices(f, counts, len(caches))
	p.More = max(len(shown)-maxRows, 0)
	for _, dc := range shown[:len(shown)-p.More] {
		p.Rows = append(p.Rows, rowOf(dc, f, now))
	}
	if len(caches) > 0 {
		p.Empty = "None is in this state."
	}
	return p
}

// rank is the place of a cache on the page: of those that need somebody, and then of the others, by state.
func rank(dc *v1alpha1.DataCache) int {
	is := view.Of(dc)
	place := slices.Index(states, is.State)
	if !is.Needs {
		place += len(states)
	}
	return place
}

// summary says in words how well all caches are; needs is how many need somebody.
func summary(counts map[v1alpha1.State]int, needs, all int) (tone, text string) {
	busy := counts[v1alpha1.StatePending] + counts[v1alpha1.StatePlanning] + counts[v1alpha1.StateLoading]
	switch {
	case all == 0:
		return "idle", "No caches"
	case needs > 0 && counts[v1alpha1.StateFailed] > 0:
		return "bad", fmt.Sprintf("%d of %d need somebody", needs, all)
	case needs > 0:
		return "warn", fmt.Sprintf("%d of %d need somebody", needs, all)
	case busy > 0:
		return "busy", fmt.Sprintf("%d of %d not loaded yet", busy, all)
	}
	return "good", fmt.Sprintf("%d Ready, %d Released", counts[v1alpha1.StateReady], counts[v1alpha1.StateReleased])
}

// choices are links to all caches and to those in each state that there is.
func choices(f Filter, counts map[v1alpha1.State]int, all int) []choice {
	out := []choice{{Text: "All", Count: all, URL: Filter{Namespace: f.Namespace}.Query(), Chosen: len(f.States) == 0}}
	for _, state := range states {
		chosen := slices.Contains(f.States, state)
		if counts[state] > 0 || chosen {
			url := Filter{Namespace: f.Namespace, States: []v1alpha1.State{state}}.Query()
			out = append(out, choice{Text: string(state), Count: counts[state], URL: url, Chosen: chosen})
		}
	}
	return out
}

func rowOf(dc *v1alpha1.DataCache, f Filter, now time.Time) row {
	s := &dc.Status
	is := view.Of(dc)
	r := row{
		Namespace: dc.Namespace, Name: dc.Name, NamespaceURL: Filter{Namespace: dc.Namespace, States: f.States}.Query(),
		State: string(is.State), Tone: tones[is.State], Reason: is.Reason, Message: is.Message, Percent: s.LoadedPercent, Users: s.Users,
	}
	if at := since(dc); !at.IsZero() {
		r.Since, r.Age = at.UTC(), duration.HumanDuration(now.Sub(at))
	}
	if is.NotRead != "" {
		r.Reason, r.Message = is.NotRead, is.Why
	}
	if is.Needs && r.Tone != "bad" {
		r.Tone = "warn"
	}
	switch {
	case dc.Spec.Arrow != nil:
		r.Source, r.Nodes = strings.TrimPrefix(dc.Spec.Arrow.Data(), "table "), fmt.Sprint(dc.Spec.Arrow.DataNodes)
	case dc.Spec.Fluid != nil:
		r.Source = "files"
	}
	if s.Rows != nil {
		r.Rows = humanize.Comma(*s.Rows)
	}
	if s.Bytes != nil {
		r.Bytes = words.Bytes(float64(*s.Bytes))
	}
	if s.Replicas > 0 {
		r.Copies = fmt.Sprintf("%d of %d", s.ReadyReplicas, s.Replicas)
	}
	return r
}

var tones = map[v1alpha1.State]string{
	v1alpha1.StateFailed: "bad", v1alpha1.StateDegraded: "warn", v1alpha1.StatePending: "busy", v1alpha1.StatePlanning: "busy",
	v1alpha1.StateLoading: "busy", v1alpha1.StateReady: "good", v1alpha1.StateReleased: "idle",
}

// since is when the DataCache's conditions changed last, or when it failed; between Pending, Planning and Loading they don't change.
func since(dc *v1alpha1.DataCache) time.Time {
	var at time.Time
	if dc.Status.LastFailure != nil && dc.Status.State == v1alpha1.StateFailed {
		at = dc.Status.LastFailure.Time.Time
	}
	for _, c := range dc.Status.Conditions {
		if c.LastTransitionTime.After(at) {
			at = c.LastTransitionTime.Time
		}
	}
	return at
}
