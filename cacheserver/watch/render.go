// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"time"

	"github.com/kubeflow/datacache/internal/webpage"
)

//go:embed assets
var assets embed.FS

var (
	templates = template.Must(template.New("").Funcs(template.FuncMap{
		"bytes": func(n int64) string { return FormatBytes(float64(n)) },
		"clock": func(t time.Time) string { return t.UTC().Format("15:04:05") },
		"stamp": func(t time.Time) string { return t.UTC().Format(time.RFC3339) },
		"width": func(from, to float64) string { return fmt.Sprintf("%.4g", max(to-from, 0)*100) },
		"part":  percent,
	}).ParseFS(assets, "assets/page.html"))
	style = webpage.Style()
)

func percent(value, most float64) string {
	if most <= 0 {
		return "0"
	}
	return fmt.Sprintf("%.4g", min(max(value/most, 0), 1)*100)
}

// sectionNames are the names of the templates of the sections, which are also the IDs of their elements, in the order of the page.
var sectionNames = []string{"state", "tables", "meters", "charts", "log", "facts"}

// section is the HTML of a section as it was last rendered.
type section struct {
	html    string
	version int    // increases with each change
	message []byte // "NAME":"HTML" in JSON
}

// page is the data of the templates.
type page struct {
	View
	Left   string // time until it is loaded; empty if unknown
	Charts []chart
	Events []Event
	Time   time.Time
	Style  template.CSS // of a report; empty: the page links its style
	Links  bool
}

// data returns what the page shows at now; charts are drawn only if draw is set.
func (p *Page) data(now time.Time, draw bool) page {
	d := page{View: p.View(), Events: p.history.newest(), Time: now}
	if draw {
		d.Charts = p.history.charts()
	}
	if left, ok := p.history.left(); ok && d.Done < d.Total {
		d.Left = formatDuration(left)
	}
	return d
}

// Percent is how much is loaded, for the page's title and progress bar.
func (d page) Percent() int64 {
	if d.Total == 0 {
		return 100
	}
	return d.Done * 100 / d.Total
}

func render(name string, d page) []byte {
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, name, d); err != nil {
		panic(fmt.Sprintf("template %s: %v", name, err)) // they are constant: a test executes all
	}
	return b.Bytes()
}

func (p *Page) serveHTML(w http.ResponseWriter, _ *http.Request) {
	d := p.data(time.Now(), true)
	d.Links = true
	webpage.Write(w, webpage.Policy, render("page.html", d))
}

// serveReport serves the page as one file that can be kept: its style is inline, which the policy allows by its hash.
func (p *Page) serveReport(w http.ResponseWriter, _ *http.Request) {
	d := p.data(time.Now(), true)
	d.Style = template.CSS(style) //nolint:gosec // our own file, embedded
	name := strings.ReplaceAll(d.Role, " ", "-") + d.Time.UTC().Format("-2006-01-02T15-04-05Z.html")
	w.Header().Set("Content-Disposition", "attachment; filename="+name)
	sum := sha256.Sum256([]byte(style))
	webpage.Write(w, webpage.Policy+"; style-src 'sha256-"+base64.StdEncoding.EncodeToString(sum[:])+"'", render("page.html", d))
}

// Part is the length of the meter's bar, in percent.
func (m Meter) Part() string { return percent(float64(m.Used), float64(m.Limit)) }

// Tone warns before the limit is reached.
func (m Meter) Tone() Tone {
	if m.Limit > 0 && float64(m.Used) > 0.95*float64(m.Limit) {
		return Warn
	}
	return Busy
}
