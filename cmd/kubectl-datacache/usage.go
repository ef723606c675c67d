// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/internal/view"
)

// maxAnswer is the most bytes that are read of a head's /status; answerIn is the longest that it may take.
const (
	maxAnswer = 16 << 20
	answerIn  = 20 * time.Second
)

// cacheUsage is what a cache uses now: its memory, and who reads how fast. Bytes are of Arrow data.
type cacheUsage struct {
	Namespace      string        `json:"namespace"`
	Name           string        `json:"name"`
	State          string        `json:"state"`
	MemoryUsed     int64         `json:"memoryUsed"`  // bytes, of all data nodes
	MemoryLimit    int64         `json:"memoryLimit"` // likewise
	DiskUsed       int64         `json:"diskUsed"`    // likewise, by files with rows
	RowsPerSecond  float64       `json:"rowsPerSecond"`
	BytesPerSecond float64       `json:"bytesPerSecond"`
	Nodes          []nodeUsage   `json:"nodes,omitempty"`
	Readers        []readerUsage `json:"readers,omitempty"`
	Problem        string        `json:"problem,omitempty"` // why the rest is not known
}

type nodeUsage struct {
	Head        string `json:"head"` // the head's pod
	Index       int    `json:"index"`
	State       string `json:"state"`
	Rows        int64  `json:"rows"`
	Restarts    int    `json:"restarts"`
	MemoryUsed  int64  `json:"memoryUsed"`
	MemoryLimit int64  `json:"memoryLimit"`
	DiskUsed    int64  `json:"diskUsed"`
}

type readerUsage struct {
	view.ReaderKey
	Streams        int     `json:"streams"`
	RowsPerSecond  float64 `json:"rowsPerSecond"`
	BytesPerSecond float64 `json:"bytesPerSecond"`
	Blocked        float64 `json:"blocked"` // part of the streams' time in which a message waited for the client
	AtWork         float64 `json:"atWork"`  // part in which the data node made the next message
}

// usage asks the cache's heads twice, over apart.
func (c *cluster) usage(ctx context.Context, dc *v1alpha1.DataCache, over time.Duration) (*cacheUsage, error) {
	u := &cacheUsage{Namespace: dc.Namespace, Name: dc.Name, State: string(dc.Status.State)}
	heads, err := c.heads(ctx, dc)
	if err != nil {
		return u, err
	}
	samples := make([]sample, len(heads))
	group, ctx := errgroup.WithContext(ctx)
	for i := range heads {
		group.Go(func() (err error) {
			samples[i], err = c.sample(ctx, &heads[i], over)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return u, err
	}
	for i := range samples {
		u.add(heads[i].Name, &samples[i])
	}
	slices.SortStableFunc(u.Readers, func(a, b readerUsage) int {
		return cmp.Or(cmp.Compare(a.Job, b.Job), cmp.Compare(a.Rank, b.Rank), cmp.Compare(b.BytesPerSecond, a.BytesPerSecond))
	})
	return u, nil
}

// sample is two answers of a head.
type sample struct {
	before, after *view.HeadStatus
	elapsed       time.Duration
}

// sample asks the head twice, over apart.
func (c *cluster) sample(ctx context.Context, head *corev1.Pod, over time.Duration) (s sample, err error) {
	f, err := c.forward(head, 0)
	if err != nil {
		return s, err
	}
	defer f.stop()
	if s.before, err = ask(ctx, f.address); err != nil {
		return s, fmt.Errorf("ask pod %s/%s: %w", head.Namespace, head.Name, err)
	}
	began := time.Now()
	select {
	case <-time.After(over):
	case <-ctx.Done():
		return s, ctx.Err()
	}
	if s.after, err = ask(ctx, f.address); err != nil {
		return s, fmt.Errorf("ask pod %s/%s: %w", head.Namespace, head.Name, err)
	}
	s.elapsed = time.Since(began)
	return s, nil
}

// ask returns the /status of the head at an address.
func ask(ctx context.Context, address string) (*view.HeadStatus, error) {
	ctx, cancel := context.WithTimeout(ctx, answerIn)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/status", http.NoBody)
	if err != nil {
		return nil, err
	}
	request.Close = true
	response, err := (&http.Transport{}).RoundTrip(request) // without a proxy
	if err != nil {
		return nil, err
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("its /status answers %s", response.Status)
	}
	status := &view.HeadStatus{}
	if err := json.NewDecoder(io.LimitReader(response.Body, maxAnswer)).Decode(status); err != nil {
		return nil, fmt.Errorf("read its /status: %w", err)
	}
	return status, nil
}

// add adds what a head and its data nodes use.
func (u *cacheUsage) add(head string, s *sample) {
	for _, n := range s.after.Nodes {
		u.MemoryUsed += n.Memory.Used
		u.MemoryLimit += n.Memory.Limit
		nu := nodeUsage{
			Head: head, Index: n.Index, State: n.State, Rows: n.Rows, Restarts: n.Restarts, MemoryUsed: n.Memory.Used, MemoryLimit: n.Memory.Limit,
		}
		if n.Spill != nil {
			nu.DiskUsed = n.Spill.Bytes
		}
		u.DiskUsed += nu.DiskUsed
		u.Nodes = append(u.Nodes, nu)
	}
	earlier := map[view.ReaderKey]view.Reader{}
	for _, r := range s.before.Readers {
		earlier[r.ReaderKey] = r
	}
	seconds := s.elapsed.Seconds()
	for _, r := range s.after.Readers {
		r = r.Since(earlier[r.ReaderKey])
		streams := float64(max(r.Streams, 1))
		ru := readerUsage{
			ReaderKey: r.ReaderKey, Streams: r.Streams, RowsPerSecond: float64(r.Rows) / seconds, BytesPerSecond: float64(r.Bytes) / seconds,
			Blocked: min(float64(r.ClientMS)/1000/seconds/streams, 1), AtWork: min(float64(r.NodeMS)/1000/seconds/streams, 1),
		}
		u.RowsPerSecond += ru.RowsPerSecond
		u.BytesPerSecond += ru.BytesPerSecond
		u.Readers = append(u.Readers, ru)
	}
}
