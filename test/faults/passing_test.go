// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/kubeflow/datacache/cacheserver/node"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/s3test"
)

// The tests of this file cover temporary faults, after which no loaded row may be lost.

// catalog is an Iceberg REST catalog with one table, db.t, whose response status a test can set.
type catalog struct {
	server *httptest.Server
	status atomic.Int32 // of the response; with 200 it has the table
	drips  atomic.Bool  // drips instead, without end
}

func startCatalog(t *testing.T, l *lake) *catalog {
	t.Helper()
	c := &catalog{}
	c.status.Store(http.StatusOK)
	location, metadata := l.table.Metadata(), l.metadata()
	c.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		status := int(c.status.Load())
		switch {
		case c.drips.Load():
			drip(w, r, 0)
		case status == http.StatusServiceUnavailable || status != http.StatusOK && !strings.HasSuffix(r.URL.Path, "/config"):
			w.WriteHeader(status)
			fmt.Fprintf(w, `{"error":{"message":"told to","type":"Told","code":%d}}`, status)
		case strings.HasSuffix(r.URL.Path, "/config"):
			fmt.Fprint(w, `{"defaults":{},"overrides":{}}`)
		default:
			fmt.Fprintf(w, `{"metadata-location":%q,"metadata":%s,"config":{}}`, location, metadata)
		}
	}))
	t.Cleanup(c.server.Close)
	return c
}

// drip answers with a byte every 60 ms, of length bytes or, if that is 0, of no stated number.
func drip(w http.ResponseWriter, r *http.Request, length int) {
	if length > 0 {
		w.Header().Set("Content-Length", strconv.Itoa(length))
	}
	each := time.NewTicker(60 * time.Millisecond)
	defer each.Stop()
	for {
		if _, err := io.WriteString(w, " "); err != nil {
			return
		}
		_ = http.NewResponseController(w).Flush() // a write fails once the client has left
		select {
		case <-each.C:
		case <-r.Context().Done():
			return
		}
	}
}

// args returns the flags that name the catalog's table.
func (c *catalog) args() []string {
	return []string{"--metadata", "", "--catalog-uri", c.server.URL, "--schema-name", "db", "--table-name", "t"}
}

// metadata returns the content of the table's metadata file.
func (l *lake) metadata() []byte {
	l.t.Helper()
	if l.s3 != nil {
		_, key, _ := strings.Cut(l.table.Metadata(), bucket+"/")
		return l.s3.Get(bucket, key)
	}
	text, err := os.ReadFile(strings.TrimPrefix(l.table.Metadata(), "file://"))
	if err != nil {
		l.t.Fatal(err)
	}
	return text
}

// TestHeadRestartsWithoutStoreOrCatalog restarts the head of a Ready cache while store or catalog are unavailable: the nodes must
// keep every row, and the cache must be Ready again without reading anything.
func TestHeadRestartsWithoutStoreOrCatalog(t *testing.T) {
	tests := []struct {
		name  string
		spoil func(l *lake, cat *catalog)
	}{
		{"the catalog answers 503", func(_ *lake, cat *catalog) { cat.status.Store(503) }},
		{"the catalog has no such table", func(_ *lake, cat *catalog) { cat.status.Store(404) }},
		{"the catalog is away", func(_ *lake, cat *catalog) { cat.server.Close() }},
		{"the metadata file is gone", func(l *lake, _ *catalog) {
			_, key, _ := strings.Cut(l.table.Metadata(), bucket+"/")
			l.s3.Delete(bucket, key)
		}},
		{"the store denies everything", func(l *lake, _ *catalog) { l.s3.Inject(s3test.Match{}, s3test.Deny()) }},
		{"the store answers 503", func(l *lake, _ *catalog) { l.s3.Inject(s3test.Match{}, s3test.Throttle()) }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			l := onS3(t, 4, 50, 25)
			cat := startCatalog(t, l)
			c := newCluster(t, l, 2)
			if strings.Contains(test.name, "catalog") {
				c.headArgs = append(c.headArgs, cat.args()...)
			}
			c.startAll()
			before := c.await(protocol.StateReady)
			c.head.kill()
			test.spoil(l, cat)
			l.s3.Forget()
			c.startHead()
			after := c.await(protocol.StateReady)
			if after.Snapshot != before.Snapshot || after.Rows != before.Rows {
				t.Errorf("the cache has snapshot %d with %d rows after the restart, had %d with %d", after.Snapshot, after.Rows, before.Snapshot, before.Rows)
			}
			c.wantReads("node-0", nil)
			c.wantReads("node-1", nil)
			c.servesAll(3)
		})
	}
}

// TestFirstPlanWaitsForTheCatalog starts a cache while its catalog returns errors: it must report that, and continue when the catalog
// works.
func TestFirstPlanWaitsForTheCatalog(t *testing.T) {
	t.Parallel()
	l := onS3(t, 2, 50, 25)
	cat := startCatalog(t, l)
	cat.status.Store(503)
	c := newCluster(t, l, 1)
	c.headArgs = append(c.headArgs, cat.args()...)
	c.startAll()
	s := c.await(protocol.StatePlanning, "(attempt 3)")
	for _, part := range []string{"planning: ", cat.server.URL, "the catalog answered 503", "trying again in"} {
		if !strings.Contains(strings.ToLower(s.Reason), strings.ToLower(part)) {
			t.Errorf("the reason %q lacks %q", s.Reason, part)
		}
	}
	cat.status.Store(200)
	c.await(protocol.StateReady)
	c.servesAll(2)

	none := startCatalog(t, l)
	none.status.Store(404)
	c = newCluster(t, l, 1)
	c.headArgs = append(c.headArgs, none.args()...)
	c.startAll()
	failedWith(c, "table", "check namespace, table and warehouse")
}

// TestCatalogThatDrips starts a cache whose catalog sends a byte now and then: --stall-timeout ends the answer, and --load-timeout the first
// load.
func TestCatalogThatDrips(t *testing.T) {
	t.Parallel()
	l := onS3(t, 2, 50, 25)
	cat := startCatalog(t, l)
	cat.drips.Store(true)
	c := newCluster(t, l, 1)
	c.headArgs = slices.Concat(c.headArgs, cat.args(), []string{"--stall-timeout", "400ms", "--load-timeout", "4s"})
	c.startAll()
	failedWith(c, "no progress for 4s", cat.server.URL, "the catalog does not answer", "KB/s for ")

	c = newCluster(t, l, 1)
	c.headArgs = slices.Concat(c.headArgs, cat.args(), []string{"--stall-timeout", "400ms"})
	c.startAll()
	c.await(protocol.StatePlanning, "trying again in")
	cat.drips.Store(false)
	c.await(protocol.StateReady)
}

// TestHeadAndNodeLostWhileTheTableMoves kills the head and one of two nodes together, after a commit to the table. The other node's
// snapshot must stay pinned, even if the new node joins first, and even if the head is killed again meanwhile.
func TestHeadAndNodeLostWhileTheTableMoves(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprintf("head lost again %t", again), func(t *testing.T) {
			t.Parallel()
			l := onS3(t, 4, 50, 25)
			l.publish(1)
			c := running(t, l, 2)
			before := c.await(protocol.StateReady)
			pinned := l.rows
			c.head.kill()
			c.nodes[0].kill()
			c.nodes[1].freeze() // so that the new node joins first
			l.append(50)
			l.publish(2)
			c.startHead()
			c.startNode(0)
			deadline.Eventually(t, func() error {
				s, err := statusOf[node.Status](c.nodes[0])
				if err == nil && (s.Splits.Total == 0 || s.Splits.Done < s.Splits.Total) {
					err = fmt.Errorf("data node 0 has not loaded the new snapshot: %+v", s)
				}
				return err
			})
			if again {
				c.head.kill()
				c.startHead()
				c.await(protocol.StateLoading, "waiting for data node 1")
			}
			c.nodes[1].signal(syscall.SIGCONT)
			after := c.await(protocol.StateReady)
			if after.Snapshot != before.Snapshot || after.Rows != before.Rows {
				t.Errorf("the cache has snapshot %d with %d rows after the loss, had %d with %d", after.Snapshot, after.Rows, before.Snapshot, before.Rows)
			}
			l.rows = pinned
			c.servesAll(3)
		})
	}
}

// TestReloadOutlastsDeniedRights restarts a node of a Ready cache while its permissions are revoked: the cache must be Degraded with
// the reason, the other node must keep its rows, and the node must load once the permissions are restored.
func TestReloadOutlastsDeniedRights(t *testing.T) {
	t.Parallel()
	l := onS3(t, 4, 50, 25)
	c := running(t, l, 2)
	denied := l.s3.Inject(s3test.Match{}, s3test.Deny())
	c.nodes[1].kill()
	c.startNode(1)
	c.await(protocol.StateDegraded, "AccessDenied")
	c.refused("AccessDenied")
	l.s3.Forget()
	denied.Remove()
	c.await(protocol.StateReady)
	c.wantReads("node-0", nil)
	c.servesAll(2)
}

// TestAnotherPlanEndsTheStreamsOfTheOld restarts the head of a cache with another selection while a client has a stream that it does
// not read. There is no memory for both plans' rows, so the stream must be ended, with a reason.
func TestAnotherPlanEndsTheStreamsOfTheOld(t *testing.T) {
	t.Parallel()
	l := big(t)
	c := newCluster(t, l, 2)
	c.variables = []string{"GOMAXPROCS=2"} // it influences the memory reserved for loading
	c.nodeArgs = []string{"--memory-limit", "29MB"}
	c.startAll()
	c.await(protocol.StateReady)
	idle := c.firstOfNode(0)
	c.head.kill()
	c.startHead("--filter", "id >= 0")
	c.await(protocol.StateReady)
	_, err := idle.rest()
	wantStatus(t, err, codes.Unavailable, "") // the stream is in the middle of a message, after which no reason can be sent
	c.servesAll(2)
}

// TestStoreThatTrickles loads from a store that sends 5 KB/s: such responses must be abandoned, with the reason in the status, and
// the rest requested again.
func TestStoreThatTrickles(t *testing.T) {
	t.Parallel()
	l := compressed(t, "uncompressed", 4, 400, 400)
	c := newCluster(t, l, 1)
	c.args = append(c.args, "--stall-timeout", "1s")
	c.startHead()
	c.awaitPlan()
	slow := l.s3.Inject(s3test.Match{Key: l.files[2]}, s3test.Trickle(5000))
	c.startNode(0)
	c.await(protocol.StateLoading, "loading 75% (3/4 splits); data node 0: ", l.name(2), "the answer is slow: ", "KB/s for ", "trying again (attempt ")
	slow.Remove()
	c.await(protocol.StateReady)
	if retries := c.nodes[0].metric("datacache_objstore_retries_total"); retries < 1 {
		t.Errorf("%.0f retries, want one for each answer that was abandoned", retries)
	}
	c.servesAll(2)
}
