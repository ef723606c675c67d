// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/kubeflow/datacache/objectcache/router"
)

func TestForwarding(t *testing.T) {
	t.Parallel()
	servers := []*member{start(t, "one"), start(t, "two"), start(t, "three")}
	var members []router.Member
	for i, name := range []string{"one", "two", "three"} {
		members = append(members, router.Member{Name: name, Address: servers[i].address})
	}
	for _, s := range servers {
		s.router.Set(members)
	}
	const objects = 60
	for i := range objects {
		target := fmt.Sprintf("/v1/objects/open//key %%20/../%d", i)
		target = strings.ReplaceAll(target, " ", "")
		if got := ask(t, servers[i%3].address, "PUT", target, fmt.Sprint("body ", i), asA); got.Status != 201 {
			t.Fatalf("PUT: %+v", got)
		}
		for _, s := range servers {
			if got := ask(t, s.address, "GET", target, "", asA, "Range: bytes=1-3"); got.Status != 206 || got.Body != "ody" {
				t.Errorf("GET %s: %d %q, want 206 %q", target, got.Status, got.Body, "ody")
			}
		}
	}
	total := int64(0)
	for _, s := range servers {
		for _, b := range s.store.Stats() {
			if b.Bucket == "open" && b.Objects == 0 {
				t.Error("one server has no object at all")
			}
			total += b.Objects
		}
	}
	if total != objects {
		t.Errorf("%d objects are stored, want each of %d once", total, objects)
	}
	if got := ask(t, servers[0].address, "GET", "/v1/objects/team/x", "", "Authorization: Bearer token-b"); got.Status != 403 {
		t.Errorf("another namespace: %d, want 403", got.Status)
	}
	servers[2].reviewer.down.Store(true)
	for i := range objects { // the forwarding node admits what it can check; the owner checks again
		target := fmt.Sprintf("/v1/objects/open/fresh-%d", i)
		at, elsewhere := servers[0].router.Elsewhere("open", fmt.Sprintf("fresh-%d", i))
		if !elsewhere || at.Name != "three" {
			continue
		}
		if got := ask(t, servers[0].address, "GET", target, "", "Authorization: Bearer token-c"); got.Status != 503 {
			t.Errorf("the owner can't review, and the answer is %d, want 503", got.Status)
		}
		break
	}
}

func TestNeverForwardedTwice(t *testing.T) {
	t.Parallel()
	one, two := start(t, "one"), start(t, "two")
	// Each considers the other one the owner of every key.
	one.router.Set([]router.Member{{Name: "two", Address: two.address}})
	two.router.Set([]router.Member{{Name: "one", Address: one.address}})
	if got := ask(t, one.address, "PUT", "/v1/objects/open/x", "body", asA); got.Status != 201 {
		t.Fatal(got)
	}
	for s, want := range map[*member]int64{one: 0, two: 1} {
		var objects int64
		for _, b := range s.store.Stats() {
			objects += b.Objects
		}
		if objects != want {
			t.Errorf("%d objects, want %d", objects, want)
		}
	}
	if got := ask(t, one.address, "GET", "/v1/objects/open/x", "", asA); got.Status != 200 || got.Body != "body" {
		t.Errorf("GET: %+v", got)
	}
}

func TestTheOwnerIsGone(t *testing.T) {
	t.Parallel()
	m := start(t, "one")
	dead, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	m.router.Set([]router.Member{{Name: "two", Address: dead.Addr().String()}})
	dead.Close()
	for method, want := range map[string]int{"GET": 404, "HEAD": 404, "PUT": 503, "DELETE": 503} {
		if got := ask(t, m.address, method, "/v1/objects/open/x", "body", asA); got.Status != want {
			t.Errorf("%s: %d, want %d", method, got.Status, want)
		}
	}
}

// TestABadPutLeavesTheOwnerAlone breaks off a client's body: requests of other clients must still be forwarded to the owner.
func TestABadPutLeavesTheOwnerAlone(t *testing.T) {
	t.Parallel()
	one, two := start(t, "one"), start(t, "two")
	one.router.Set([]router.Member{{Name: "two", Address: two.address}})
	two.holdsX(t)
	for name, framing := range map[string]string{
		"short":   "Content-Length: 100\r\n\r\nhalf",
		"chunked": "Transfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
		"invalid": "Transfer-Encoding: chunked\r\n\r\nzz\r\nhalf\r\n",
	} {
		conn := dial(t, one.address)
		fmt.Fprintf(conn, "PUT /v1/objects/open/y HTTP/1.1\r\nHost: cache\r\n%s\r\n%s", asA, framing)
		if err := conn.CloseWrite(); err != nil {
			t.Fatal(err)
		}
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil || response.StatusCode != 400 {
			t.Errorf("%s: %v %v, want 400", name, response, err)
		}
		if got := ask(t, one.address, "GET", "/v1/objects/open/x", "", asA); got.Status != 200 || got.Body != "body" {
			t.Errorf("GET by another client after a PUT that is %s: %d %q, want 200", name, got.Status, got.Body)
		}
	}
}

// TestTheOwnerIsStopped stops the owner's process, whose kernel still accepts connections and requests.
func TestTheOwnerIsStopped(t *testing.T) {
	t.Parallel()
	stopped := listen(t)
	for method, want := range map[string]int{"GET": 404, "HEAD": 404, "PUT": 503, "DELETE": 503} {
		m, owner := start(t, "one"), router.Member{Name: "two", Address: stopped.Addr().String()}
		m.router.Set([]router.Member{owner})
		begin := time.Now()
		if got := ask(t, m.address, method, "/v1/objects/open/x", "body", asA); got.Status != want || got.Header.Get("Retry-After") == "" {
			t.Errorf("%s: %d, want %d", method, got.Status, want)
		}
		if took := time.Since(begin); took < aliveAfter {
			t.Errorf("%s took %s, want at least %s", method, took, aliveAfter)
		}
		if _, suspended := m.Peers.suspended.Load(owner); !suspended {
			t.Errorf("%s: requests to the owner are not suspended", method)
		}
		m.Peers.suspended.Store(owner, time.Now().Add(time.Hour)) // however long the next request takes to come
		if got := ask(t, m.address, method, "/v1/objects/open/x", "body", asA); got.Status != want {
			t.Errorf("%s again: %d, want %d", method, got.Status, want)
		}
		if spared := m.traffic.forwards.spared.Load(); spared != 1 {
			t.Errorf("%s: %d requests were spared, want the second", method, spared)
		}
	}
}

// TestTheOwnerIsSlow checks that a member that is alive may take longer to respond than the timeout of a probe.
func TestTheOwnerIsSlow(t *testing.T) {
	t.Parallel()
	asked := make(chan struct{}, 1)
	slow := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == alivePath {
			select {
			case asked <- struct{}{}:
			default:
			}
			return
		}
		<-asked
		_, _ = w.Write([]byte("late"))
	}))
	t.Cleanup(slow.Close)
	m := start(t, "one")
	m.router.Set([]router.Member{{Name: "two", Address: slow.Listener.Addr().String()}})
	if got := ask(t, m.address, "GET", "/v1/objects/open/x", "", asA); got.Status != 200 || got.Body != "late" {
		t.Errorf("%+v", got)
	}
}

func TestEveryMemberSaysThatItIsAlive(t *testing.T) {
	t.Parallel()
	m := start(t, "one")
	m.Wait("starting")
	m.reviewer.down.Store(true)
	if !m.Peers.isAlive(t.Context(), router.Member{Name: "one", Address: m.address}, aliveAfter) {
		t.Error("a server that lets nobody in is alive nevertheless")
	}
}
