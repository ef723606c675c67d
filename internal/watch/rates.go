// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package watch

import "time"

// Rates turns counters of things that come and go, by key, into rates a second, smoothed over about five seconds. The zero value is
// ready to use; it is not safe for concurrent use.
type Rates struct{ keys map[string]*rate }

type rate struct {
	last, rates []float64
	seen        time.Time
}

// smoothing is the weight of a new second.
const smoothing = 0.4

// Add takes the current counters of a key. All keys of one moment are added with the same now, each with equally many counters.
func (r *Rates) Add(now time.Time, key string, counters ...float64) {
	if r.keys == nil {
		r.keys = map[string]*rate{}
	}
	p := r.keys[key]
	if p == nil {
		r.keys[key] = &rate{last: counters, rates: make([]float64, len(counters)), seen: now}
		return
	}
	elapsed := now.Sub(p.seen).Seconds()
	if elapsed <= 0 {
		return
	}
	for i, c := range counters {
		increase := max(c-p.last[i], 0) / elapsed // a counter may start anew
		p.rates[i] += smoothing * (increase - p.rates[i])
		if p.rates[i] < 1e-3 {
			p.rates[i] = 0
		}
	}
	p.last, p.seen = counters, now
}

// Forget drops the keys that were not added at now.
func (r *Rates) Forget(now time.Time) {
	for key, p := range r.keys {
		if p.seen.Before(now) {
			delete(r.keys, key)
		}
	}
}

// Of returns the rate of each counter of a key, zeros before its second Add; nil if the key is not known. The caller must not change it.
func (r *Rates) Of(key string) []float64 {
	if p := r.keys[key]; p != nil {
		return p.rates
	}
	return nil
}
