// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/objectcache/router"
)

// partSize is the tests' Config.PartSize.
const partSize = 10_000

// largeBody is a body of many parts, different for each seed.
func largeBody(seed uint64) string {
	random := rand.New(rand.NewPCG(seed, 0)) //nolint:gosec // not for secrets
	text := make([]byte, 12*partSize+345)
	for i := range text {
		text[i] = byte('a' + random.IntN(26))
	}
	return string(text)
}

// trioOfParts is trio with PartSize.
func trioOfParts(t *testing.T) (servers []*member, members []router.Member) {
	t.Helper()
	servers, members = trio(t)
	for _, s := range servers {
		s.cfg.PartSize = partSize
	}
	return servers, members
}

// objectsOf counts the objects, layouts and parts in the bucket "open" of each server.
func objectsOf(servers []*member) (counts []int64) {
	for _, s := range servers {
		for _, b := range s.store.Stats() {
			if b.Bucket == "open" {
				counts = append(counts, b.Objects)
			}
		}
	}
	return counts
}

func sum(counts []int64) (total int64) {
	for _, n := range counts {
		total += n
	}
	return total
}

// ownedBy returns a target whose key a member owns.
func ownedBy(t *testing.T, r *router.Router, name string) string {
	t.Helper()
	for i := range 1000 {
		key := fmt.Sprint("//large/../", i)
		owner, elsewhere := r.Elsewhere("open", key)
		if !elsewhere {
			owner.Name = r.Self()
		}
		if owner.Name == name {
			return "/v1/objects/open/" + key
		}
	}
	t.Fatalf("%s owns none of 1000 keys", name)
	return ""
}

func must(t *testing.T, got reply, status int) reply {
	t.Helper()
	if got.Status != status {
		t.Fatalf("%d %q, want %d", got.Status, got.Body, status)
	}
	return got
}

func TestLargeObjectsAreSpread(t *testing.T) {
	t.Parallel()
	servers, _ := trioOfParts(t)
	for i, owner := range []string{"one", "two", "three"} { // of the key: this server, or one of two others
		target, body := ownedBy(t, servers[0].router, owner), largeBody(uint64(i))
		must(t, ask(t, servers[0].address, "PUT", target, body, asA), 201)
		counts := objectsOf(servers)
		if sum(counts) != 13+1 || min(counts[0], counts[1], counts[2]) < 4 {
			t.Errorf("owner %s: the servers have %v objects, want 13 parts and a layout, 4 or 5 parts each", owner, counts)
		}
		for _, s := range servers {
			got := must(t, ask(t, s.address, "GET", target, "", asA), 200)
			if got.Body != body || got.Header.Get("Content-Length") != fmt.Sprint(len(body)) {
				t.Errorf("owner %s, GET of %s: %d bytes, want %d others", owner, s.router.Self(), len(got.Body), len(body))
			}
			head := must(t, ask(t, s.address, "HEAD", target, "", asA), 200)
			if head.Header.Get("Content-Length") != fmt.Sprint(len(body)) {
				t.Errorf("owner %s, HEAD of %s: %v", owner, s.router.Self(), head.Header)
			}
			for _, cut := range [][2]int{{0, 1}, {partSize - 1, partSize + 1}, {partSize, 2 * partSize}, {5, len(body) - 5}, {len(body) - 1, len(body)}} {
				got := must(t, ask(t, s.address, "GET", target, "", asA, fmt.Sprintf("Range: bytes=%d-%d", cut[0], cut[1]-1)), 206)
				want := fmt.Sprintf("bytes %d-%d/%d", cut[0], cut[1]-1, len(body))
				if got.Body != body[cut[0]:cut[1]] || got.Header.Get("Content-Range") != want {
					t.Errorf("owner %s, range %v of %s: %d bytes, %s", owner, cut, s.router.Self(), len(got.Body), got.Header.Get("Content-Range"))
				}
			}
			must(t, ask(t, s.address, "GET", target, "", asA, fmt.Sprintf("Range: bytes=%d-", len(body))), 416)
			if _, entries := askBatch(t, s.address, "open", "none\n"+strings.TrimPrefix(target, "/v1/objects/open/")); len(entries) != 2 ||
				entries[0] != "none!404" || !strings.HasSuffix(entries[1], "="+body) {
				t.Errorf("owner %s, a batch of %s: %d entries", owner, s.router.Self(), len(entries))
			}
		}
		must(t, ask(t, servers[1].address, "DELETE", target, "", asA), 204)
		if counts := objectsOf(servers); sum(counts) != 0 {
			t.Errorf("owner %s: after DELETE the servers have %v objects", owner, counts)
		}
		must(t, ask(t, servers[2].address, "GET", target, "", asA), 404)
	}
}

func TestLargeObjectsAreReplaced(t *testing.T) {
	t.Parallel()
	servers, _ := trioOfParts(t)
	target := ownedBy(t, servers[0].router, "two")
	idOf := func() string {
		if p := (&request{server: servers[1].Server, bucket: "open", key: strings.TrimPrefix(target, "/v1/objects/open/")}).partsOf(); p != nil {
			return p.ID
		}
		return ""
	}
	var last string
	for i, body := range []string{"small", largeBody(1), largeBody(2), "small", largeBody(3), largeBody(3)} {
		must(t, ask(t, servers[0].address, "PUT", target, body, asA), 201)
		if got := must(t, ask(t, servers[2].address, "GET", target, "", asA), 200); got.Body != body {
			t.Errorf("step %d: %d bytes, want %d others", i, len(got.Body), len(body))
		}
		want := int64(14)
		if body == "small" {
			want = 1
		}
		if counts := objectsOf(servers); sum(counts) != want {
			t.Errorf("step %d: the servers have %v objects, want %d", i, counts, want)
		}
		if i == 5 && idOf() != last {
			t.Error("an object that replaced itself has other parts")
		}
		last = idOf()
	}
	key := strings.TrimPrefix(target, "/v1/objects/open/")
	for _, s := range servers { // a part of each is evicted
		for n := range int64(13) {
			name := (&layout{ID: last}).name(n)
			if s.store.Has("open", partKey(key, name)) {
				if err := s.store.Delete("open", partKey(key, name)); err != nil {
					t.Fatal(err)
				}
				break
			}
		}
	}
	for _, method := range []string{"GET", "HEAD"} {
		if got := must(t, ask(t, servers[0].address, method, target, "", asA), 404); got.Header.Get("Retry-After") != "" {
			t.Errorf("%s: Retry-After though the object is gone", method)
		}
	}
	if got := must(t, ask(t, servers[0].address, "GET", target, "", asA, "Range: bytes=-10"), 206); got.Body != largeBody(3)[12*partSize+335:] {
		t.Errorf("a range of the last part: %q", got.Body)
	}
	if _, got := askBatch(t, servers[0].address, "open", key); !cmp.Equal(got, []string{key + "!404"}) {
		t.Errorf("a batch: %v", got)
	}
	must(t, ask(t, servers[0].address, "PUT", target, largeBody(3), asA), 201)
	if got := must(t, ask(t, servers[0].address, "GET", target, "", asA), 200); got.Body != largeBody(3) || idOf() == last {
		t.Errorf("after another PUT: %d bytes", len(got.Body))
	}
}

// TestAPartIsAway removes a member that has parts, and adds it again. The object must be back with it.
func TestAPartIsAway(t *testing.T) {
	t.Parallel()
	servers, members := trioOfParts(t)
	target, body := ownedBy(t, servers[0].router, "one"), largeBody(1)
	must(t, ask(t, servers[0].address, "PUT", target, body, asA), 201)
	setAll := func(to []router.Member) {
		for _, s := range servers {
			s.router.Set(to)
		}
	}
	setAll(members[:2])
	for _, method := range []string{"GET", "HEAD"} {
		if got := must(t, ask(t, servers[0].address, method, target, "", asA), 404); got.Header.Get("Retry-After") == "" {
			t.Errorf("%s without a node that has parts: no Retry-After", method)
		}
	}
	setAll(members)
	if got := must(t, ask(t, servers[1].address, "GET", target, "", asA), 200); got.Body != body {
		t.Errorf("%d bytes, want %d others", len(got.Body), len(body))
	}
	gone := listen(t)
	gone.Close()
	dead := []router.Member{members[0], members[1], {Name: "three", Address: gone.Addr().String()}}
	setAll(dead)
	must(t, ask(t, servers[0].address, "GET", target, "", asA), 404)
	other := ownedBy(t, servers[0].router, "two")
	must(t, ask(t, servers[0].address, "PUT", other, body, asA), 503) // by two, which avoids the dead node for a while from then on
	for range 20 {
		if got := ask(t, servers[0].address, "PUT", other, body, asA); got.Status == 201 {
			break
		}
	}
	if got := must(t, ask(t, servers[0].address, "GET", other, "", asA), 200); got.Body != body {
		t.Errorf("%d bytes, want %d others", len(got.Body), len(body))
	}
}

func TestLargePutsFail(t *testing.T) {
	t.Parallel()
	servers, _ := trioOfParts(t)
	target := ownedBy(t, servers[0].router, "two")
	conn := dial(t, servers[1].address) // the owner, which answers when it has removed the parts
	fmt.Fprintf(conn, "PUT %s HTTP/1.1\r\nHost: cache\r\n%s\r\nContent-Length: %d\r\n\r\n%s", target, asA, 100_000, strings.Repeat("x", 65_000))
	if err := conn.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || response.StatusCode != 400 {
		t.Errorf("a body that breaks off: %v, %v, want 400", response, err)
	}
	if counts := objectsOf(servers); sum(counts) != 0 {
		t.Errorf("after a body that breaks off the servers have %v objects", counts)
	}
	must(t, ask(t, servers[0].address, "PUT", target, strings.Repeat("x", 3<<20), asA), 413) // the quota is 1 MiB on each
	must(t, ask(t, servers[0].address, "PUT", target, strings.Repeat("x", 2<<20), asA), 201)
	must(t, ask(t, servers[0].address, "DELETE", target, "", asA), 204)
	must(t, ask(t, servers[0].address, "PUT", "/v1/objects/team/x", largeBody(1), "Authorization: Bearer token-b"), 403)
	servers[2].reviewer.down.Store(true)
	must(t, ask(t, servers[0].address, "PUT", target, largeBody(1), "Authorization: Bearer token-c"), 503)
	if counts := objectsOf(servers); sum(counts) != 0 {
		t.Errorf("after a part that was refused the servers have %v objects", counts)
	}
}

// TestPartsAreNotObjects checks that clients reach parts only as other members do, and layouts not at all.
func TestPartsAreNotObjects(t *testing.T) {
	t.Parallel()
	servers, _ := trioOfParts(t)
	target, body := ownedBy(t, servers[0].router, "one"), largeBody(1)
	must(t, ask(t, servers[0].address, "PUT", target, body, asA), 201)
	id := (&request{server: servers[0].Server, bucket: "open", key: strings.TrimPrefix(target, "/v1/objects/open/")}).partsOf().ID
	for _, s := range servers {
		if got := must(t, ask(t, s.address, "GET", target, "", asA, "Datacache-Part: "+id+"/0"), 200); got.Body != body {
			t.Errorf("%s: %d bytes for a client that names a part", s.router.Self(), len(got.Body))
		}
		must(t, ask(t, s.address, "GET", target, "", "Datacache-Hop: 1", "Datacache-Part: "+id+"/0"), 401)
		must(t, ask(t, s.address, "GET", target+"%20"+id+"/0", "", asA), 404)
	}
}
