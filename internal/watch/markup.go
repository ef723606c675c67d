// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"fmt"
	"html"
	"strings"
	"time"

	"github.com/kubeflow/datacache/internal/words"
)

// markup writes the HTML of the page. The zero value is empty. It takes the place of html/template, which calls methods by name: a
// program that links it keeps all exported methods of all its types, such as all of the S3 SDK (docs/adr/0025-pages-are-drawn-by-the-servers.md).
type markup struct{ strings.Builder }

// add writes HTML, in which {} stands for the next value. Values are escaped, for text and for attributes in double quotes. It panics unless
// there are as many values as {}.
func (m *markup) add(code string, values ...any) {
	for _, v := range values {
		before, after, found := strings.Cut(code, "{}")
		if !found {
			panic("no {} for a value: " + code)
		}
		m.WriteString(before)
		m.WriteString(html.EscapeString(fmt.Sprint(v)))
		code = after
	}
	if strings.Contains(code, "{}") {
		panic("no value for {}: " + code)
	}
	m.WriteString(code)
}

// addIf is add if the condition holds.
func (m *markup) addIf(condition bool, code string, values ...any) {
	if condition {
		m.add(code, values...)
	}
}

func clock(t time.Time) string { return t.UTC().Format(time.TimeOnly) }

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// title is the title of the page.
func (d page) title() string {
	title := d.State
	if d.Done < d.Total {
		title += fmt.Sprintf(" %d %%", d.percent())
	}
	return title + " · " + d.Role + " " + d.Name
}

// whole writes the page.
func (m *markup) whole(d page) {
	m.add(`<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{}</title>
`, d.title())
	links := `<link rel="icon" href="icon.svg">
<link rel="stylesheet" href="page.css">
<script src="page.js" defer></script>
`
	if d.Report {
		links = "<style>" + style + "</style>\n"
	}
	m.WriteString(links)
	m.add(`</head>
<body>
<header>
<h1><span class="role">{}</span> <span class="name">{}</span></h1>
`, d.Role, d.Name)
	m.addIf(d.Report, `<nav><time datetime="{}">{}</time></nav>`, stamp(d.Time), stamp(d.Time))
	m.addIf(!d.Report, `<nav><span id="live" class="live">at {} UTC</span>
<a href="report.html">Report to keep</a> <a href="history.json">History</a> <a href="status">Status</a> <a href="metrics">Metrics</a>
</nav>`, clock(d.Time))
	m.add("\n</header>\n<main>\n")
	for _, s := range sections {
		m.add(`<section id="{}"`, s.id)
		m.addIf(s.id == "state", ` aria-live="polite"`)
		m.add(">")
		s.write(m, d)
		m.add("</section>\n")
	}
	m.add("</main>\n</body>\n</html>\n")
}

func (m *markup) state(d page) {
	m.add(`<div class="card state {}" data-title="{}">
<h2><span class="badge {}">{}</span></h2>
`, d.Tone, d.title(), d.Tone, d.State)
	m.addIf(d.Reason != "ready", `<p class="reason">{}</p>`, d.Reason)
	if d.Total != 0 {
		m.add(`<p class="load"><progress max="{}" value="{}" aria-label="loaded">{} %</progress>
<span>{} % · {} of {} {}`, d.Total, d.Done, d.percent(), d.percent(), d.Done, d.Total, d.Unit)
		m.addIf(d.Left != "", " · about {} left", d.Left)
		m.add("</span></p>")
	}
	if len(d.Waits) > 0 {
		m.add(`<ul class="waits">`)
		for _, w := range d.Waits {
			m.add("<li><span>{}</span>", w.For)
			m.addIf(w.Fix != "", ` <span class="fix">{}</span>`, w.Fix)
			m.add("</li>")
		}
		m.add("</ul>")
	}
	m.add("\n</div>")
}

func (m *markup) tables(d page) {
	for _, t := range d.Tables {
		m.add(`<div class="card">
<h2 id="{}">{}</h2>
`, t.ID, t.Title)
		m.addIf(t.Note != "", "<p class=\"note\">{}</p>\n", t.Note)
		m.addIf(len(t.Rows) == 0, `<p class="empty">{}</p>`, t.Empty)
		if len(t.Rows) > 0 {
			m.table(t.ID, "", t.Head, t.Rows)
		}
		m.add("\n</div>")
	}
}

// table writes a table, labelled by the element with an ID. Its class may be empty.
func (m *markup) table(id, class string, head []string, rows [][]Cell) {
	m.add(`<div class="wide" tabindex="0" role="region" aria-labelledby="{}"><table`, id)
	m.addIf(class != "", ` class="{}"`, class)
	m.add(">\n<thead><tr>")
	for _, name := range head {
		m.add(`<th scope="col">{}</th>`, name)
	}
	m.add("</tr></thead>\n<tbody>")
	for _, row := range rows {
		m.add("<tr>")
		for _, c := range row {
			m.cell(c)
		}
		m.add("</tr>")
	}
	m.add("</tbody>\n</table></div>")
}

func (m *markup) cell(c Cell) {
	m.add("<td")
	m.addIf(c.Number, ` class="number"`)
	m.add(">")
	switch {
	case !c.Time.IsZero():
		m.add(`<time datetime="{}">{}</time>`, stamp(c.Time), clock(c.Time))
	case c.Tone != "":
		m.add(`<span class="dot {}">{}</span>`, c.Tone, c.Text)
	default:
		m.add("{}", c.Text)
	}
	if c.Bar != nil {
		m.bar(Piece{To: part(c.Bar.Value, c.Bar.Max), Tone: "fore"})
	}
	if len(c.Strip) > 0 {
		m.bar(c.Strip...)
	}
	m.add("</td>")
}

// bar draws pieces of a bar of length 1.
func (m *markup) bar(pieces ...Piece) {
	m.add(`<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" aria-hidden="true"><rect class="back" width="100" height="8"/>`)
	for _, p := range pieces {
		m.add(`<rect class="{}" x="{}" width="{}" height="8"/>`, p.Tone, percent(p.From), percent(p.To-p.From))
	}
	m.add("</svg>")
}

// percent writes a part of 1 in percent.
func percent(part float64) string { return fmt.Sprintf("%.4g", max(part, 0)*100) }

// part is an amount as a part of the most that it may be: from 0 to 1.
func part(value, most float64) float64 {
	if most <= 0 {
		return 0
	}
	return min(max(value/most, 0), 1)
}

func (m *markup) meters(d page) {
	if len(d.Meters) == 0 {
		return
	}
	m.add(`<div class="card"><h2>Memory and disk</h2>
<ul class="meters">`)
	for _, meter := range d.Meters {
		m.add("<li><span>{}</span>\n", meter.Name)
		m.bar(meter.piece())
		m.add("\n<span class=\"amount\">{} of {}", words.Bytes(float64(meter.Used)), words.Bytes(float64(meter.Limit)))
		m.addIf(meter.Peak != 0, ", at most {}", words.Bytes(float64(meter.Peak)))
		m.add("</span></li>")
	}
	m.add("</ul></div>")
}

// piece is the meter's bar, which warns before the limit is reached.
func (m Meter) piece() Piece {
	p := Piece{To: part(float64(m.Used), float64(m.Limit)), Tone: Busy}
	if p.To > 0.95 {
		p.Tone = Warn
	}
	return p
}

func (m *markup) charts(d page) {
	m.add(`<div class="card"><h2>The last 15 minutes</h2><div class="charts">`)
	for _, c := range d.Charts {
		m.add(`<figure>
<figcaption>{}<span class="top">{}</span></figcaption>
<svg viewBox="0 0 {} {}" preserveAspectRatio="none" role="img" aria-label="{}">
`, c.Title, c.Top, chartWidth, chartHeight, c.Summary)
		for _, l := range c.Lines {
			m.addIf(l.Area != "", `<polygon points="{}" class="area"/>`, l.Area)
		}
		for _, l := range c.Lines {
			m.add(`<polyline points="{}" class="line {}"/>`, l.Points, l.class())
		}
		m.add("\n</svg>\n<ul class=\"legend\">")
		for _, l := range c.Lines {
			m.add(`<li class="{}">{} <b>{}</b></li>`, l.class(), l.Name, l.Now)
		}
		m.add("</ul>\n</figure>")
	}
	m.add("</div></div>")
}

func (l line) class() string {
	if l.Limit {
		return fmt.Sprintf("l%d limit", l.Index)
	}
	return fmt.Sprintf("l%d", l.Index)
}

func (m *markup) log(d page) {
	m.add(`<div class="card"><h2 id="what">What happened</h2>
`)
	if len(d.Events) == 0 {
		m.add(`<p class="empty">Nothing yet.</p></div>`)
		return
	}
	rows := make([][]Cell, 0, len(d.Events))
	for _, e := range d.Events {
		rows = append(rows, []Cell{{Time: e.Time}, Text(e.Who), Toned(e.To, e.Tone), Text(e.Reason)})
	}
	m.table("what", "log", []string{"UTC", "Who", "State", "Reason"}, rows)
	m.add("</div>")
}

func (m *markup) facts(d page) {
	if len(d.Facts) == 0 {
		return
	}
	m.add(`<div class="card"><h2>Details</h2>
<dl>`)
	for _, f := range d.Facts {
		m.add("<dt>{}</dt><dd>{}", f.Name, f.Value)
		if len(f.List) > 0 {
			m.add(`<ul class="list">`)
			for _, each := range f.List {
				m.add("<li>{}</li>", each)
			}
			m.add("</ul>")
		}
		m.add("</dd>")
	}
	m.add("</dl></div>")
}
