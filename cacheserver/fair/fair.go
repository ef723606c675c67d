// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package fair divides a server's time among jobs: streams take turns to make and send their messages, so that each job gets bytes in
// proportion to its weight, however many streams it has.
//
// Turns are granted by start-time fair queueing (Goyal, Vin, Cheng: SIGCOMM 1996) over jobs, and in the order of requests within a job.
// Each job has a virtual finish time. A turn's start is the later of the queue's virtual time and the job's finish; the turn with the
// earliest start is granted next, the virtual time becomes that start, and the job's finish becomes its start + bytes / weight. A job that
// was idle therefore gains no credit. A job's name is a claim, so jobs whose streams come from the same address share the weight of one. See
// docs/adr/0026-turns-by-job.md.
package fair

import (
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

const (
	// How long a stream may hold a turn while others wait: mostPatience while it makes or sends a message, and Stream.patience while it
	// waits for its client. The latter starts at usualPatience and falls to leastPatience while the client reads slowly.
	usualPatience, leastPatience, mostPatience = 20 * time.Millisecond, time.Millisecond, 100 * time.Millisecond
	// quickTurn is the maximum length of a turn whose client reads as fast as the server sends.
	quickTurn = 4 * time.Millisecond
	// pollInterval is the time between two checks of whether a stream still uses its turn.
	pollInterval = 5 * time.Millisecond
	// usualMessage is the assumed length, in bytes, of a stream's first message.
	usualMessage = 1 << 20
	// equal is the difference of virtual start times, in bytes divided by weight, up to which jobs count as equally far: a few messages.
	equal = 4 * usualMessage
)

// Queue grants turns to streams. Make it with New; it is safe for concurrent use.
type Queue struct {
	mu       sync.Mutex
	settings Settings
	turns    int
	jobs     map[string]*job    // with streams, by name
	sources  map[string]*source // by address
	shares   float64            // sum of their shares
	waiting  []*job             // jobs with waiting streams; those that were granted a turn longest ago come first
	holding  []*Stream          // streams with a turn
	virtual  float64            // the virtual time: the earliest start of all waiting jobs when a turn was granted last
	latest   float64            // the latest virtual finish time of all jobs
	timer    *time.Timer
	due      time.Time // when timer ends; zero: it is not running
}

// job is one job's state. Queue.mu protects it.
type job struct {
	name    string
	share   float64         // factor of its weight, in (0, 1]: 1 if one of its addresses has no other job
	weight  float64         // weight from the settings times share
	streams map[*source]int // number of streams by address; each is above 0
	total   int             // number of streams
	held    int             // number of turns that its streams hold
	finish  float64         // virtual finish time
	waiting []*Stream       // in order of their requests
}

// source is an address that streams come from.
type source struct {
	address string
	jobs    map[*job]bool // with streams from here
	latest  float64       // the latest virtual finish time of its streams' turns; a new job from this address starts there
}

// Stream is a member of a queue that sends one message after another. Only one goroutine may use it. Make it with Queue.Join and
// release it with Leave.
type Stream struct {
	queue *Queue
	job   *job
	from  *source
	ready chan struct{} // buffered; receives one value when a waiting stream gets its turn
	uses  func() bool
	sent  int64 // bytes sent in this turn

	// Protected by Queue.mu.
	index    int // in Queue.holding; -1: it holds no turn
	charged  int64
	open     bool // a turn was granted and not settled, even if it was lost
	since    time.Time
	network  bool          // this turn waited for the network, so that its length says nothing about the client
	patience time.Duration // how long it may hold a turn while others wait
	last     int64         // bytes of its last message
}

// New returns a queue that grants at most turns turns at a time, or two for each job with streams if that is more; jobs of one address
// count as one job. While only one job has streams, the number of turns is not limited.
func New(turns int) *Queue {
	q := &Queue{turns: turns, jobs: map[string]*job{}, sources: map[string]*source{}}
	q.timer = time.AfterFunc(time.Hour, q.overdue)
	q.timer.Stop()
	return q
}

// Configure replaces the weights and limits. Streams that are open stay open, even above new limits.
func (q *Queue) Configure(s Settings) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.settings = s
	for _, j := range q.jobs {
		j.weight = j.share * s.weight(j.name)
	}
}

// LimitError says that a job may not open another stream. The text names the limit and the job.
type LimitError struct {
	Limit string // maxJobs or maxStreamsPerJob
	Most  int
	Job   string
}

func (e *LimitError) Error() string {
	if e.Limit == "maxJobs" {
		return fmt.Sprintf("job %q: %d other jobs read from this data node, which is its limit maxJobs; wait until one ends, or raise the limit", e.Job, e.Most)
	}
	return fmt.Sprintf("job %q: it has %d streams of this data node, which is the limit maxStreamsPerJob; end one, or raise the limit", e.Job, e.Most)
}

// Join adds a stream from an address to a job. uses reports whether the stream is making a message or waiting for the network; false means
// that it waits for its client. It may be called whenever the stream has a turn, and must not call the queue. The error is a *LimitError.
func (q *Queue) Join(name, address string, uses func() bool) (*Stream, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	j := q.jobs[name]
	if limit := q.settings.MaxJobs; limit > 0 && j == nil && len(q.jobs) >= limit {
		return nil, &LimitError{"maxJobs", limit, name}
	}
	if limit := q.settings.MaxStreamsPerJob; limit > 0 && j != nil && j.total >= limit {
		return nil, &LimitError{"maxStreamsPerJob", limit, name}
	}
	from := q.sources[address]
	if from == nil {
		for _, old := range q.sources {
			q.forget(old)
		}
		from = &source{address: address, jobs: map[*job]bool{}}
		q.sources[address] = from
	}
	if j == nil {
		j = &job{name: name, streams: map[*source]int{}, finish: from.latest}
		q.jobs[name] = j
	}
	j.total++
	if j.streams[from]++; j.streams[from] == 1 {
		from.jobs[j] = true
		q.divide(from)
	}
	return &Stream{queue: q, job: j, from: from, ready: make(chan struct{}, 1), uses: uses, index: -1, patience: usualPatience, last: usualMessage}, nil
}

// divide sets the shares of a source's jobs. It is called when the number of these jobs has changed.
func (q *Queue) divide(from *source) {
	for j := range from.jobs {
		q.setShare(j)
	}
}

// setShare sets the share of a job: the largest that it has of any of its addresses.
func (q *Queue) setShare(j *job) {
	q.shares -= j.share
	j.share = 0
	for from := range j.streams {
		j.share = max(j.share, 1/float64(len(from.jobs)))
	}
	q.shares += j.share
	j.weight = j.share * q.settings.weight(j.name)
}

// forget removes a source without streams whose latest finish time is not ahead of the virtual time: a new source would start the same.
func (q *Queue) forget(from *source) {
	if len(from.jobs) == 0 && from.latest <= q.virtual {
		delete(q.sources, from.address)
	}
}

// Leave ends the stream's turn and removes the stream.
func (s *Stream) Leave() {
	q := s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	q.settle(s)
	j, from := s.job, s.from
	j.total--
	if j.streams[from]--; j.streams[from] == 0 {
		delete(j.streams, from)
		delete(from.jobs, j)
		q.setShare(j)
		q.divide(from)
		if j.total == 0 {
			delete(q.jobs, j.name) // its sources keep its finish
		}
		q.forget(from)
	}
	q.dispatch()
}

// Sent counts bytes that the stream sent in its turn.
func (s *Stream) Sent(bytes int64) { s.sent += bytes }

// Take ends the stream's turn, if it has one, and waits for the next one; it returns how long it waited. If the stream's own turn
// would come next, it doesn't wait. The error is that of ctx, and the stream then has no turn.
func (s *Stream) Take(ctx context.Context) (time.Duration, error) {
	q := s.queue
	q.mu.Lock()
	q.settle(s)
	if len(s.job.waiting) == 0 {
		q.waiting = append(q.waiting, s.job)
	}
	s.job.waiting = append(s.job.waiting, s)
	q.dispatch()
	if s.open {
		<-s.ready
		q.mu.Unlock()
		return 0, nil
	}
	q.mu.Unlock()
	begin := time.Now()
	select {
	case <-s.ready:
		return time.Since(begin), nil
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if s.open { // granted in the meantime
		<-s.ready
		q.settle(s)
		q.dispatch()
	} else {
		q.withdraw(s)
	}
	return time.Since(begin), ctx.Err()
}

// Contended reports whether the stream has a turn while others wait for one.
func (s *Stream) Contended() bool {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	return s.index >= 0 && len(s.queue.waiting) > 0
}

// Draining tells the queue that the stream's turn is long because of the network and not because of the client.
func (s *Stream) Draining() {
	s.queue.mu.Lock()
	defer s.queue.mu.Unlock()
	s.network = true
}

// Release ends the stream's turn.
func (s *Stream) Release() {
	q := s.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	q.settle(s)
	q.dispatch()
}

// settle ends the stream's turn, if it has one, and charges the job for the bytes that it sent. mu is held.
func (q *Queue) settle(s *Stream) {
	if !s.open {
		return
	}
	s.open = false
	s.job.finish += float64(s.sent-s.charged) / s.job.weight
	q.count(s)
	if s.sent > 0 {
		s.last = s.sent
	}
	s.sent = 0
	if s.index >= 0 {
		if time.Since(s.since) < quickTurn {
			s.patience = min(2*s.patience, usualPatience)
		} else if !s.network {
			s.patience = max(s.patience*3/4, leastPatience)
		}
		q.drop(s)
	}
	if len(q.holding) == 0 && len(q.waiting) == 0 { // a busy period ends: all jobs start equal in the next one
		q.virtual = max(q.virtual, q.latest)
	}
}

// count raises the latest virtual finish times of the queue and the stream's source to that of its job. mu is held.
func (q *Queue) count(s *Stream) {
	q.latest = max(q.latest, s.job.finish)
	s.from.latest = max(s.from.latest, s.job.finish)
}

// drop takes the turn from a stream that holds one. mu is held.
func (q *Queue) drop(s *Stream) {
	end := len(q.holding) - 1
	q.holding[s.index] = q.holding[end]
	q.holding[s.index].index = s.index
	q.holding[end] = nil
	q.holding = q.holding[:end]
	s.index = -1
	s.job.held--
}

// dispatch grants turns while there are any. mu is held.
func (q *Queue) dispatch() {
	for len(q.waiting) > 0 && (len(q.jobs) < 2 || len(q.holding) < max(q.turns, int(math.Round(2*q.shares)))) {
		q.grant(q.next())
	}
	if len(q.waiting) > 0 {
		q.watch(time.Now())
	}
}

// next returns the index in waiting of the job that gets the next turn, and the earliest start of all waiting jobs. It is the job with
// the earliest start or, of several whose starts count as equal, the one that holds the fewest turns for its weight. By the earliest start
// alone, a job with as many streams as its share of the turns would lose a turn whenever another job's message ends a moment earlier.
// mu is held.
func (q *Queue) next() (best int, first float64) {
	first = q.start(q.waiting[0])
	for _, j := range q.waiting[1:] {
		first = min(first, q.start(j))
	}
	best = -1
	for i, j := range q.waiting {
		if q.start(j) <= first+equal && (best < 0 || float64(j.held)*q.waiting[best].weight < float64(q.waiting[best].held)*j.weight) {
			best = i
		}
	}
	return best, first
}

// start is the virtual time at which the job's next turn would start. mu is held.
func (q *Queue) start(j *job) float64 { return max(q.virtual, j.finish) }

// grant gives a turn to the first stream of the job waiting[i]; first is the earliest start of all waiting jobs. The virtual time does not
// pass the finish time of a job that holds turns, which may have no waiting stream and would fall behind. mu is held.
func (q *Queue) grant(i int, first float64) {
	before := q.virtual
	j := q.waiting[i]
	s := j.waiting[0]
	j.waiting = slices.Delete(j.waiting, 0, 1)
	q.waiting = slices.Delete(q.waiting, i, i+1)
	if len(j.waiting) > 0 {
		q.waiting = append(q.waiting, j)
	}
	s.charged = s.last
	j.finish = q.start(j) + float64(s.charged)/j.weight
	q.virtual = first
	for _, h := range q.holding {
		q.virtual = min(q.virtual, h.job.finish)
	}
	q.virtual = max(q.virtual, before)
	q.count(s)
	j.held++
	s.open, s.index, s.since, s.network = true, len(q.holding), time.Now(), false
	q.holding = append(q.holding, s)
	s.ready <- struct{}{}
}

// withdraw removes a waiting stream. mu is held.
func (q *Queue) withdraw(s *Stream) {
	s.job.waiting = slices.DeleteFunc(s.job.waiting, func(w *Stream) bool { return w == s })
	if len(s.job.waiting) == 0 {
		q.waiting = slices.DeleteFunc(q.waiting, func(j *job) bool { return j == s.job })
	}
}

// watch sets the timer to when the first held turn reaches its stream's patience, at most pollInterval from now. mu is held.
func (q *Queue) watch(now time.Time) {
	if len(q.holding) == 0 {
		return
	}
	first := now.Add(pollInterval)
	for _, s := range q.holding {
		if due := s.since.Add(s.patience); due.Before(first) && due.After(now) { // past ones were found to use their turns
			first = due
		}
	}
	if q.due.IsZero() || first.Before(q.due) {
		q.due = first
		q.timer.Reset(first.Sub(now))
	}
}

// overdue takes turns from streams that have held them too long and grants them to waiting streams, so that no stream waits for another
// one's client. A stream that loses its turn still sends its message, and its job is charged for it.
func (q *Queue) overdue() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.due = time.Time{}
	if len(q.waiting) == 0 {
		return
	}
	now := time.Now()
	for _, s := range slices.Clone(q.holding) {
		if held := now.Sub(s.since); held >= s.patience && (held >= mostPatience || !s.uses()) {
			s.patience = max(s.patience/2, leastPatience)
			q.drop(s)
		}
	}
	q.dispatch()
}
