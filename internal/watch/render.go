// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"strings"
	"time"

	"github.com/kubeflow/datacache/internal/webpage"
)

var style = webpage.Style()

// sections are the sections of the page, in its order, by the IDs of their elements.
var sections = []struct {
	id    string
	write func(*markup, page)
}{
	{"state", (*markup).state}, {"tables", (*markup).tables}, {"meters", (*markup).meters},
	{"charts", (*markup).charts}, {"log", (*markup).log}, {"facts", (*markup).facts},
}

// section is the HTML of a section as it was last rendered.
type section struct {
	html    string
	version int    // increases with each change
	message []byte // "NAME":"HTML" in JSON
}

// page is what the HTML shows.
type page struct {
	View
	Left   string // time until it is loaded; empty if unknown
	Charts []chart
	Events []Event
	Time   time.Time
	Report bool // in one file, which has its style and links nothing
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

// percent is how much is loaded, for the page's title and progress bar.
func (d page) percent() int64 {
	if d.Total == 0 {
		return 100
	}
	return d.Done * 100 / d.Total
}

func render(write func(*markup, page), d page) string {
	var m markup
	write(&m, d)
	return m.String()
}

func (p *Page) serveHTML(w http.ResponseWriter, _ *http.Request) {
	webpage.Write(w, webpage.Policy, []byte(render((*markup).whole, p.data(time.Now(), true))))
}

// serveReport serves the page as one file that can be kept: its style is inline, which the policy allows by its hash.
func (p *Page) serveReport(w http.ResponseWriter, _ *http.Request) {
	d := p.data(time.Now(), true)
	d.Report = true
	name := strings.ReplaceAll(d.Role, " ", "-") + d.Time.UTC().Format("-2006-01-02T15-04-05Z.html")
	w.Header().Set("Content-Disposition", "attachment; filename="+name)
	sum := sha256.Sum256([]byte(style))
	policy := webpage.Policy + "; style-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	webpage.Write(w, policy, []byte(render((*markup).whole, d)))
}
