// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/overview"
	"github.com/kubeflow/datacache/internal/webpage"
)

// fleet is a server of the page of DataCaches, as the manager serves it to somebody who may list all. test/controlplane tests who may
// list which.
type fleet struct {
	mu     sync.Mutex
	caches []v1alpha1.DataCache
}

func (f *fleet) set(caches ...v1alpha1.DataCache) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.caches = caches
}

func (f *fleet) serve(t *testing.T) (url string) {
	t.Helper()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /caches", func(w http.ResponseWriter, r *http.Request) {
		filter, err := overview.ParseFilter(r.URL.Query())
		if err != nil {
			t.Error(err)
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		var of []v1alpha1.DataCache
		for _, dc := range f.caches {
			if filter.Namespace == "" || filter.Namespace == dc.Namespace {
				of = append(of, dc)
			}
		}
		overview.Write(w, filter, "caches/", of)
	})
	webpage.Register(mux, "/caches/")
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL + "/caches"
}

// dataCache returns a DataCache whose state began ago.
func dataCache(namespace, name, table string, state v1alpha1.State, ago time.Duration, reason, message string) v1alpha1.DataCache {
	return v1alpha1.DataCache{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec:       v1alpha1.DataCacheSpec{Arrow: &v1alpha1.ArrowCache{Table: table, DataNodes: 4}},
		Status: v1alpha1.DataCacheStatus{
			State: state, Replicas: 1, Users: 1,
			Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Reason: reason, Message: message, LastTransitionTime: metav1.NewTime(time.Now().Add(-ago))}},
		},
	}
}

func loaded(dc v1alpha1.DataCache, percent int32) v1alpha1.DataCache {
	dc.Status.LoadedPercent, dc.Status.Rows, dc.Status.Bytes = &percent, new(int64(percent)*4_120_000), new(int64(percent)*1_300_000_000)
	if percent == 100 {
		dc.Status.ReadyReplicas = 1
	}
	return dc
}

func TestAllCaches(t *testing.T) {
	ready := loaded(dataCache("ranking", "clicks", "web.clicks", v1alpha1.StateReady, 50*time.Hour, "Loaded", "all 412000000 rows are in memory"), 100)
	f := &fleet{}
	f.set(
		ready,
		loaded(dataCache("team-a", "train", "demo.reviews", v1alpha1.StateLoading, 130*time.Second, "Loading", "loading 40% (4/10 splits)"), 40),
		dataCache("team-b", "images", "vision.images", v1alpha1.StateFailed, 12*time.Minute, "LoadFailed", "snapshot 7231 of table vision.images: s3://lake/images/00017.parquet: access denied"),
		loaded(dataCache("team-b", "speech", "audio.speech", v1alpha1.StateDegraded, 40*time.Second, "Reloading", "data node 1 is gone; 9 of 18 splits are loaded again"), 50),
		dataCache("team-c", "old", "demo.old", v1alpha1.StateReleased, 9*24*time.Hour, "Released", "no TrainJob used it for 1h0m0s"),
	)
	b := open(t)
	b.goTo(f.serve(t))
	b.await("#state", "2 of 5 need somebody")
	b.await("#tables", "All 5", "Failed 1", "access denied", "web.clicks", "412,000,000", "1 of 1", "12m")
	if first := b.text("tbody tr"); !containsAny(first, []string{"team-b/images"}) {
		t.Errorf("the first row is not the one that failed: %s", first)
	}
	b.await("#live", "every 5 s")
	for _, colors := range []string{"light", "dark"} {
		b.colors(colors)
		b.accessible("all caches, " + colors)
		b.picture("caches-" + colors)
	}
	b.size(390, 800)
	if wide := evaluate[int](b, "document.documentElement.scrollWidth"); wide > 390 {
		t.Errorf("on a phone of 390 pixels the page is %d wide", wide)
	}
	if cut := evaluate[int](b, "[...document.querySelectorAll('.caches .message')].filter((m) => m.getBoundingClientRect().right > 390).length"); cut > 0 {
		t.Errorf("on a phone %d of the reasons are cut", cut)
	}
	b.accessible("all caches, on a phone")
	b.size(1200, 900)

	b.follow(".choices a[href*=Degraded]")
	b.await("#tables", "speech")
	b.follow("tbody a")
	b.await("h1", "in team-b")
	b.await("#tables", "All 2", "speech")
	f.set(ready)
	b.await("#tables", "There is none that you may list.") // by itself, with the same filter
	b.await("#state", "No caches")
	if got := evaluate[string](b, "document.title"); got != "No caches · data caches in team-b" {
		t.Errorf("title: %s", got)
	}
	b.accessible("no caches")
	b.follow("nav a")
	b.await("h1", "in all namespaces")
}

func TestAllCachesWithoutJavaScript(t *testing.T) {
	f := &fleet{}
	f.set(dataCache("team-a", "train", "demo.reviews", v1alpha1.StatePending, time.Minute, "Unschedulable", "pod train-cache-0: 0/3 nodes are available"))
	b := open(t)
	b.withoutScripts()
	b.goTo(f.serve(t))
	b.await("#state", "1 of 1 need somebody")
	b.await("#tables", "Unschedulable", "0/3 nodes")
	if class := evaluate[string](b, "document.querySelector('tbody .dot').className"); class != "dot warn" {
		t.Errorf("a cache that can't be scheduled has a %s, want one that warns", class)
	}
	b.follow(".choices a[href*=Pending]")
	b.await("#tables", "Unschedulable")
}

func TestTextsOfCachesAreText(t *testing.T) {
	const evil = `<img src=x onerror="document.title='owned'">'";{{.}}`
	f := &fleet{}
	f.set(dataCache("team-a", evil, evil, v1alpha1.StateFailed, time.Minute, evil, evil))
	b := open(t)
	b.goTo(f.serve(t))
	b.await("#tables", evil)
	f.set(dataCache("team-a", evil, evil, v1alpha1.StateDegraded, time.Minute, evil, evil))
	b.await("#tables", "Degraded", evil) // and after the page was fetched anew
	if n := evaluate[int](b, "document.querySelectorAll('img, b[onclick], script:not([src])').length"); n > 0 {
		t.Errorf("%d elements come from names", n)
	}
	if got := evaluate[string](b, "document.title"); got == "owned" {
		t.Error("a name ran as a script")
	}
	b.accessible("hostile names of caches")
}

// follow opens what a link leads to. It does not click, which wants no part of the page to be replaced meanwhile.
func (b *tab) follow(selector string) {
	b.t.Helper()
	link := evaluate[string](b, fmt.Sprintf("document.querySelector(%q).href", selector))
	b.goTo(link)
}
