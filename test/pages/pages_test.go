// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	ice "github.com/apache/iceberg-go"
	"github.com/chromedp/chromedp"

	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
	"github.com/kubeflow/datacache/test/kit/icetest"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

func TestACacheInItsLife(t *testing.T) {
	table := icetest.Local(t).Plain("events", 2, 4, 5000, 1000)
	c := startHead(t, table.Metadata(), iceberg.Selection{Filter: "id < 18000"}, 2)
	b := open(t)
	b.goTo(c.head)
	b.await("#state", "Loading", "data node 0 has not joined", "CACHE_SECRET")
	c.startNode(0)
	b.await("#state", "Loading", "of 18 splits", "data node 1 has not joined")
	b.await("#tables", "Missing")
	b.await("#live", "live")
	b.accessible("loading")

	node := c.spawnNode(1, table.Metadata())
	b.await("#state", "Ready", "18 of 18 splits")
	if got := evaluate[string](b, "document.title"); got != "Ready · cache events" {
		t.Errorf("title: %s", got)
	}
	b.await("h1", "events")
	if got := b.text("h1"); strings.Contains(got, "/") {
		t.Errorf("the first line has the path of the table: %s", got)
	}
	c.read(0, true)
	c.read(1, false)
	b.await("#tables", "trial-7", "0 of 2", "1 of 2", "epoch", "127.0.0.1")
	b.await("#meters", "data node 0", "data node 1", "of 256 MiB")
	b.await("#facts", "id < 18000", "category")
	b.await("#log", "data node 1", "Missing", "Ready")
	for _, colors := range []string{"light", "dark"} {
		b.colors(colors)
		b.accessible("ready, " + colors)
		b.picture("head-ready-" + colors)
	}
	b.size(390, 800)
	if wide := evaluate[int](b, "document.documentElement.scrollWidth"); wide > 390 {
		t.Errorf("on a phone of 390 pixels the page is %d wide", wide)
	}
	b.accessible("on a phone")
	b.picture("head-phone")
	b.size(1200, 900)

	node.Kill()
	b.await("#state", "Degraded", "data node 1", "is gone", "9 of 18 splits")
	b.await("#log", "Degraded")
	b.colors("light")
	b.accessible("degraded")
	b.picture("head-degraded")
	b.do("reload", chromedp.Reload())
	b.await("#state", "Degraded", "data node 1", "is gone")
	b.await("#live", "live")
}

func TestADataNode(t *testing.T) {
	table := icetest.Local(t).Plain("events", 2, 2, 5000, 1000)
	c := startHead(t, table.Metadata(), iceberg.Selection{}, 1)
	url, _ := c.startNode(0)
	b := open(t)
	b.goTo(url)
	b.await("#state", "Ready", "10 of 10 splits")
	c.read(0, true)
	b.await("#tables", "0 of 2", "epoch")
	b.await("#meters", "of 256 MiB")
	b.await("#charts", "Bytes fetched a second")
	b.accessible("data node")
}

func TestWithoutJavaScript(t *testing.T) {
	table := icetest.Local(t).Plain("events", 2, 1, 1000, 100)
	c := startHead(t, table.Metadata(), iceberg.Selection{}, 1)
	b := open(t)
	b.withoutScripts()
	b.goTo(c.head)
	b.await("#state", "data node 0 has not joined")
	c.startNode(0)
	first := open(t) // tells when the cache is ready
	first.goTo(c.head)
	first.await("#state", "Ready")
	if got := b.text("#state"); !strings.Contains(got, "has not joined") {
		t.Errorf("the page changed by itself without JavaScript:\n%s", got)
	}
	b.do("reload", chromedp.Reload())
	b.await("#state", "Ready", "10 of 10 splits")
	b.await("#tables", "Data nodes")
	b.await("#charts", "Rows read a second")
	b.await("#facts", "category")
}

func TestNamesAreText(t *testing.T) {
	const evil = `<img src=x onerror="document.title='owned'">'";{{.}}`
	schema := ice.NewSchema(0,
		ice.NestedField{ID: 1, Name: "id", Type: ice.PrimitiveTypes.Int64, Required: true},
		ice.NestedField{ID: 2, Name: evil, Type: ice.PrimitiveTypes.Float64},
	)
	table := icetest.Local(t).Create(`a<b onclick=x>&"'`, 2, schema)
	table.Append(icetest.Row{"id": 1, evil: 2.5})
	c := startHead(t, table.Metadata(), iceberg.Selection{}, 1)
	c.startNode(0)
	b := open(t)
	b.goTo(c.head)
	b.await("#state", "Ready")
	b.await("#facts", evil, `a<b onclick=x>&"'`)
	b.await("#live", "live") // and after a message of events
	b.await("#facts", evil)
	if n := evaluate[int](b, "document.querySelectorAll('img, b[onclick], script:not([src])').length"); n > 0 {
		t.Errorf("%d elements come from names", n)
	}
	if got := evaluate[string](b, "document.title"); got == "owned" {
		t.Error("a name ran as a script")
	}
	b.accessible("hostile names")
}

func TestThe65thPageReloadsItself(t *testing.T) {
	table := icetest.Local(t).Plain("events", 2, 1, 1000, 100)
	c := startHead(t, table.Metadata(), iceberg.Selection{}, 1)
	for range 64 {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, c.head+"/events", nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil || response.StatusCode != http.StatusOK {
			t.Fatal(response, err)
		}
		t.Cleanup(func() { _ = response.Body.Close() })
	}
	b := open(t, "503")
	b.goTo(c.head)
	b.await("#live", "every 5 s")
	b.await("#state", "has not joined")
	c.startNode(0)
	b.await("#state", "Ready")
}

func TestTheReportIsOneFile(t *testing.T) {
	table := icetest.Local(t).Plain("events", 2, 1, 1000, 100)
	c := startHead(t, table.Metadata(), iceberg.Selection{}, 1)
	c.startNode(0)
	b := open(t)
	b.goTo(c.head)
	b.await("#state", "Ready")
	_, report, err := proctest.Request(t.Context(), http.DefaultClient, http.MethodGet, c.head+"/report.html")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "report.html")
	if err := os.WriteFile(file, []byte(report), 0o600); err != nil {
		t.Fatal(err)
	}
	kept := open(t)
	kept.goTo("file://" + file)
	kept.await("#state", "Ready")
	kept.await("#facts", "category")
	if got := evaluate[string](kept, "getComputedStyle(document.querySelector('.card')).borderRadius"); got == "0px" {
		t.Error("the report has no style")
	}
	kept.accessible("report")
}
