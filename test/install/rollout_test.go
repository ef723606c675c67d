// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package install

import (
	"context"
	"fmt"
	"io"
	"net"
	"slices"
	"sync"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// service stands in for the webhook's Service: it forwards new connections to its endpoints in turn.
type service struct {
	listener net.Listener

	mu        sync.Mutex
	endpoints []string
	next      int
	conns     map[string]int // number of connections so far, by endpoint
}

func newService(t *testing.T, endpoints ...string) *service {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(cluster.Address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	s := &service{listener: listener, endpoints: endpoints, conns: map[string]int{}}
	go s.serve()
	t.Cleanup(func() { _ = listener.Close() })
	return s
}

func (s *service) serve() {
	for {
		from, err := s.listener.Accept()
		if err != nil {
			return
		}
		go func() {
			defer from.Close()
			to, err := net.Dial("tcp", s.pick())
			if err != nil {
				return
			}
			defer to.Close()
			go func() { _, _ = io.Copy(to, from); _ = to.(*net.TCPConn).CloseWrite() }()
			_, _ = io.Copy(from, to)
		}()
	}
}

func (s *service) pick() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next++
	endpoint := s.endpoints[s.next%len(s.endpoints)]
	s.conns[endpoint]++
	return endpoint
}

func (s *service) set(endpoints ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.endpoints = endpoints
}

func (s *service) served(endpoint string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.conns[endpoint]
}

// TestNoCallIsRefusedAtRollout replaces both managers as a rollout of the Deployment does, while TrainJobs with caches are submitted
// continuously: a new manager becomes ready and an endpoint; the old one stops being an endpoint, and its preStop gives the cluster
// time to notice; then it is terminated. Every TrainJob must be admitted.
func TestNoCallIsRefusedAtRollout(t *testing.T) {
	webhooks := newService(t)
	if err := cluster.Install(t.Context(), rendered(t, repository, overlay), webhooks.listener.Addr().String()); err != nil {
		t.Fatal(err)
	}
	old := []*manager{start(t, program, namespace), start(t, program, namespace)}
	webhooks.set(old[0].webhook, old[1].webhook)
	twin(t)
	ns := cluster.Namespace(t)
	stream := submit(t, ns)
	stream.passes(t, 50)
	endpoints := []string{old[0].webhook, old[1].webhook}
	var fresh []string
	for _, m := range old {
		next := start(t, program, namespace)
		fresh = append(fresh, next.webhook)
		endpoints = append(endpoints[1:], next.webhook)
		webhooks.set(endpoints...)
		m.terminate(t)
		stream.passes(t, 50)
	}
	if webhooks.served(fresh[0])+webhooks.served(fresh[1]) == 0 {
		t.Error("the API server has no connection to a new manager")
	}
	stream.end(t)
}

// stream submits TrainJobs one after the other, as several users concurrently, without storing them (dry run).
type stream struct {
	stop   context.CancelFunc
	users  sync.WaitGroup
	mu     sync.Mutex
	count  int
	errors []error
	tick   chan struct{} // closed and replaced at each response
}

func submit(t *testing.T, namespace string) *stream {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	s := &stream{stop: stop, tick: make(chan struct{})}
	for user := range 4 {
		s.users.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				err := cluster.Client.Create(ctx, cacheJob(namespace, fmt.Sprintf("job-%d-%d", user, i)), client.DryRunAll)
				if ctx.Err() == nil {
					s.note(err)
				}
			}
		})
	}
	t.Cleanup(func() { stop(); s.users.Wait() })
	return s
}

func (s *stream) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.count++
	if err != nil {
		s.errors = append(s.errors, err)
	}
	close(s.tick)
	s.tick = make(chan struct{})
}

// passes waits for n more responses.
func (s *stream) passes(t *testing.T, n int) {
	t.Helper()
	s.mu.Lock()
	goal := s.count + n
	s.mu.Unlock()
	for {
		s.mu.Lock()
		done, tick := s.count >= goal, s.tick
		s.mu.Unlock()
		if done {
			return
		}
		select {
		case <-tick:
		case <-t.Context().Done():
			t.Fatal("the test was stopped")
		}
	}
}

func (s *stream) end(t *testing.T) {
	t.Helper()
	s.stop()
	s.users.Wait()
	t.Logf("%d TrainJobs were submitted", s.count)
	for _, err := range slices.Clip(s.errors[:min(3, len(s.errors))]) {
		t.Errorf("a TrainJob was refused, one of %d: %v", len(s.errors), err)
	}
}
