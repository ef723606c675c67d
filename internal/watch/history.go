// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"slices"
	"sync"
	"time"

	"github.com/kubeflow/datacache/internal/redact"
)

const (
	// seconds is the length of the history.
	seconds = 900
	// maxEvents is the number of events that are kept.
	maxEvents = 200
	// etaWindow is the time over which the rate of loading is measured.
	etaWindow = 60
)

// history is the last 15 minutes of samples, and the last events. It is safe for concurrent use. Make it with newHistory.
type history struct {
	series []Series

	mu     sync.Mutex
	ring   [][seconds]float64 // by series; the value of second i is at i % seconds
	count  int                // samples taken
	last   []float64          // of the previous sample, for rates
	done   [etaWindow]int64   // Sample.Done, likewise by second
	total  int64
	at     time.Time // of the newest sample
	states map[string]State
	events []Event // oldest first
}

func newHistory(series []Series) *history {
	return &history{series: series, ring: make([][seconds]float64, len(series)), last: make([]float64, len(series)), states: map[string]State{}}
}

// add appends a sample that was taken at now.
func (h *history) add(s Sample, now time.Time) {
	h.mu.Lock()
	defer h.mu.Unlock()
	elapsed := now.Sub(h.at).Seconds()
	for i, spec := range h.series {
		value := s.Values[i]
		if spec.Rate {
			value = 0 // there is no rate before the second sample, nor when a counter starts anew
			if h.count > 0 && elapsed > 0 && s.Values[i] > h.last[i] {
				value = (s.Values[i] - h.last[i]) / elapsed
			}
		}
		h.ring[i][h.count%seconds], h.last[i] = value, s.Values[i]
	}
	h.done[h.count%etaWindow], h.total = s.Done, s.Total
	h.count++
	h.at = now
	h.noteLocked(s.States, now)
}

// noteLocked appends an event for each state that changed.
func (h *history) noteLocked(states []State, now time.Time) {
	for _, s := range states {
		before, known := h.states[s.Who]
		if known && before.Is == s.Is {
			continue
		}
		h.states[s.Who] = s
		h.events = append(h.events, Event{Time: now, Who: s.Who, From: before.Is, To: s.Is, Reason: redact.Text(s.Reason), Tone: s.Tone})
	}
	if extra := len(h.events) - maxEvents; extra > 0 {
		h.events = slices.Delete(h.events, 0, extra)
	}
}

// newest returns the events, the newest first.
func (h *history) newest() []Event {
	h.mu.Lock()
	defer h.mu.Unlock()
	events := slices.Clone(h.events)
	slices.Reverse(events)
	return events
}

// values returns the values of a series, oldest first.
func (h *history) values(series int) []float64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := min(h.count, seconds)
	values := make([]float64, 0, n)
	for i := h.count - n; i < h.count; i++ {
		values = append(values, h.ring[series][i%seconds])
	}
	return values
}

// left estimates the time until everything is loaded; ok is false while there is nothing to estimate it from.
func (h *history) left() (left time.Duration, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	n := min(h.count, etaWindow)
	if n < 2 {
		return 0, false
	}
	newest := h.done[(h.count-1)%etaWindow]
	oldest, span := newest, 0
	for i := h.count - 2; i >= h.count-n; i-- {
		if h.done[i%etaWindow] > oldest {
			break // loading started anew
		}
		oldest, span = h.done[i%etaWindow], h.count-1-i
	}
	if newest >= h.total || newest == oldest {
		return 0, false
	}
	rate := float64(newest-oldest) / float64(span)
	return time.Duration(float64(h.total-newest) / rate * float64(time.Second)), true
}
