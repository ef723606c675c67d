// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"bytes"
	"encoding/json"
	"net/http"
	"time"
)

// update renders the sections that listeners have and wakes the listeners. The charts, which change with every sample, are drawn once
// per bucket.
func (p *Page) update(now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sections == nil {
		p.sections = make([]section, len(sections))
	}
	p.history.mu.Lock()
	count := p.history.count
	p.history.mu.Unlock()
	draw := p.drawn == 0 || count-p.drawn >= bucket
	if draw {
		p.drawn = count
	}
	d := p.data(now, draw)
	for i, s := range sections {
		if s.id == "charts" && !draw {
			continue
		}
		if html := render(s.write, d); html != p.sections[i].html {
			p.sections[i] = section{html: html, version: p.sections[i].version + 1, message: message(s.id, html)}
		}
	}
	close(p.tick)
	p.tick = make(chan struct{})
}

// message encodes a section as a member of a JSON object.
func message(name, html string) []byte {
	var b bytes.Buffer
	encoder := json.NewEncoder(&b)
	encoder.SetEscapeHTML(false) // not needed, since the JSON is not embedded in HTML, and longer
	_ = encoder.Encode(name)     // strings can always be encoded
	b.Truncate(b.Len() - 1)      // the line's end
	b.WriteByte(':')
	_ = encoder.Encode(html)
	b.Truncate(b.Len() - 1)
	return b.Bytes()
}

// serveEvents streams the sections that changed as server-sent events, each with a JSON object from the sections' names to their HTML,
// the first one with all of them.
func (p *Page) serveEvents(w http.ResponseWriter, r *http.Request) {
	if p.listeners.Add(1) > maxListeners {
		p.listeners.Add(-1)
		w.Header().Set("Retry-After", "30")
		http.Error(w, "64 pages are open: this one reloads itself instead", http.StatusServiceUnavailable)
		return
	}
	defer p.listeners.Add(-1)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no") // asks nginx not to buffer
	l := listener{writer: w, control: http.NewResponseController(w), sent: make([]int, len(sections))}
	p.mu.Lock()
	tick := p.tick
	p.mu.Unlock()
	if !l.write([]byte("retry: 2000\n: events follow\n\n")) {
		return
	}
	for {
		select {
		case <-tick:
		case <-r.Context().Done():
			return
		}
		p.mu.Lock()
		tick = p.tick
		text := l.changes(p.sections)
		p.mu.Unlock()
		if text == nil && time.Since(l.last) >= commentEvery {
			text = []byte(": nothing changed\n\n")
		}
		if text != nil && !l.write(text) {
			return
		}
	}
}

// listener is one connection to /events.
type listener struct {
	writer  http.ResponseWriter
	control *http.ResponseController
	sent    []int // version of each section that the client has
	last    time.Time
}

// changes returns the message with the sections that the client does not have, nil if it has all.
func (l *listener) changes(sections []section) []byte {
	var text []byte
	for i, s := range sections {
		if s.version == l.sent[i] {
			continue
		}
		l.sent[i] = s.version
		if text == nil {
			text = []byte("data: {")
		} else {
			text = append(text, ',')
		}
		text = append(text, s.message...)
	}
	if text == nil {
		return nil
	}
	return append(text, "}\n\n"...)
}

// write sends text at once; it reports whether the client took it in time.
func (l *listener) write(text []byte) bool {
	l.last = time.Now()
	if l.control.SetWriteDeadline(l.last.Add(writeTimeout)) != nil {
		return false
	}
	_, err := l.writer.Write(text)
	return err == nil && l.control.Flush() == nil
}
