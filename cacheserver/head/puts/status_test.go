// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package puts

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
	"github.com/kubeflow/datacache/cacheserver/put"
)

// cluster is a cluster of one data node, without locks.
type cluster struct{ catalog *put.Catalog }

func (c cluster) Ready() error                               { return nil }
func (c cluster) Nodes() []Node                              { return []Node{{Address: "node:1"}} }
func (c cluster) Change(do func(*put.Catalog) error) error   { return do(c.catalog) }
func (c cluster) Look(at func(*put.Catalog)) <-chan struct{} { at(c.catalog); return nil }

// service has a put of as many parts as one may have, all staged.
func service(t *testing.T, memory *offheap.Budget) *Service {
	t.Helper()
	c := put.New(1)
	c.Join(0)
	now := time.Unix(1_800_000_000, 0)
	if err := c.Staged(0, peer.Staged{All: true}, now); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Begin(peer.Put{ID: "put-1", Name: "a", Parts: protocol.MostParts, Nodes: 1}, now); err != nil {
		t.Fatal(err)
	}
	parts := make([]protocol.PutPart, protocol.MostParts)
	for i := range parts {
		parts[i] = protocol.PutPart{Part: i, Attempt: 1, Rows: 1, Bytes: 128, Hash: fmt.Sprintf("%032x", i)}
	}
	if err := c.Staged(0, peer.Staged{ID: "put-1", Parts: parts}, now); err != nil {
		t.Fatal(err)
	}
	return &Service{Enabled: true, Cluster: cluster{c}, Signer: protocol.NewSigner([]byte("key")), Log: slog.New(slog.DiscardHandler), Memory: memory.Clients()}
}

// TestAnswersAboutParts asks for the parts of a put many times at once: what is not counted is not made.
func TestAnswersAboutParts(t *testing.T) { synctest.Test(t, testAnswersAboutParts) }

func testAnswersAboutParts(t *testing.T) {
	budget := offheap.NewBudget(64 << 20)
	s := service(t, budget)
	ctx, cancel := context.WithCancel(t.Context())
	var refused error
	made := 0
	for ; made < 100 && refused == nil; made++ {
		var answer any
		if answer, refused = s.putStatus(ctx, []byte(`{"v":1,"put":"put-1"}`)); refused == nil {
			text, err := json.Marshal(answer)
			if err != nil || len(answer.(protocol.PutState).Parts) != protocol.MostParts {
				t.Fatalf("%d bytes, error %v", len(text), err)
			}
			if reserved := budget.Used() / int64(made+1); reserved < 2*int64(len(text)) {
				t.Errorf("%d bytes are reserved for an answer of %d, want room for it and a copy", reserved, len(text))
			}
		}
	}
	if made != 3 || status.Code(refused) != codes.ResourceExhausted || !strings.Contains(refused.Error(), "in pages, by most") {
		t.Errorf("%d of 100 calls were begun in 64 MiB, the last: %v; want 3", made, refused)
	}
	for range 20 {
		answer, err := s.putStatus(ctx, []byte(`{"v":1,"put":"put-1","from":65000,"most":100}`))
		if err != nil {
			t.Fatal(err)
		}
		if page := answer.(protocol.PutState); len(page.Parts) != 100 || page.Parts[0].Part != 65000 || page.Next != 65100 {
			t.Fatalf("a page of %d parts, the next one at %d", len(page.Parts), page.Next)
		}
	}
	cancel()
	synctest.Wait()
	if budget.Used() != 0 {
		t.Errorf("%d bytes are in use after the calls have ended", budget.Used())
	}
	for body, says := range map[string]string{
		`{"v":1,"put":"put-1","from":-1}`:     "from, most: -1 and 0",
		`{"v":1,"put":"put-1","most":-1}`:     "from, most: 0 and -1",
		`{"v":1,"put":"put-1","most":5000}`:   "at most 4096 parts",
		`{"v":1,"put":"put-1","from":100000}`: "from, most: 100000",
	} {
		if _, err := s.putStatus(t.Context(), []byte(body)); status.Code(err) != codes.InvalidArgument || !strings.Contains(fmt.Sprint(err), says) {
			t.Errorf("%s: %v, want InvalidArgument with %q", body, err, says)
		}
	}
}
