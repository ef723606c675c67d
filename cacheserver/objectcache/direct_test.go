// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/cacheserver/objectcache/router"
)

// patienceOfTests is how long tests wait for what should come at once.
const patienceOfTests = 2 * time.Minute

// alone has net/http answer everything for a server, and returns where.
func alone(t *testing.T, m *member) (address string) {
	t.Helper()
	listener := listen(t)
	server := m.newHTTP(m.Server)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { _ = server.Close() })
	return listener.Addr().String()
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

// dial connects, for no longer than a test may take.
func dial(t *testing.T, address string) *net.TCPConn {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(patienceOfTests)); err != nil {
		t.Fatal(err)
	}
	return conn.(*net.TCPConn)
}

var date = regexp.MustCompile(`Date: [^\r]*`)

// last is a request after which the server closes.
const last = plainGet + asA + "\r\nConnection: close\r\n\r\n"

// converse sends pieces one after the other, then last, and returns all that comes back until the server closes, without
// dates.
func converse(t *testing.T, address string, pieces []string) string {
	t.Helper()
	conn := dial(t, address)
	go func() {
		for _, piece := range append(slices.Clip(pieces), last) {
			_, _ = io.WriteString(conn, piece) // fails when the server has closed: see what came back
			time.Sleep(time.Millisecond / 4)   // lets pieces come apart more often; nothing hangs on it
		}
	}()
	got, err := io.ReadAll(conn)
	if err != nil && !errors.Is(err, syscall.ECONNRESET) { // which it is when it closes without having read last
		t.Fatalf("after %q: %v", pieces, err)
	}
	return date.ReplaceAllString(string(got), "Date: then")
}

// TestDirectAnswersAsNetHTTPDoes holds conversations of random requests, cut into random pieces, with two servers.
func TestDirectAnswersAsNetHTTPDoes(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 8)) //nolint:gosec // repeatable
			var text strings.Builder
			for range 40 {
				text.WriteString(randomRequest(random))
			}
			pieces := cut(text.String(), random)
			ours := converse(t, start(t, "alone").address, pieces)
			theirs := converse(t, alone(t, start(t, "alone")), pieces)
			if diff := cmp.Diff(strings.Split(theirs, "\r\n"), strings.Split(ours, "\r\n")); diff != "" {
				t.Errorf("to %q (-net/http +ours):\n%s", pieces, diff)
			}
			if n := strings.Count(ours, "HTTP/1.1 "); n < 41 {
				t.Errorf("%d answers to 41 requests", n)
			}
		})
	}
}

// randomRequest is mostly a read of one of a few objects, and mostly plain.
func randomRequest(random *rand.Rand) string {
	pick := func(of ...string) string { return of[random.IntN(len(of))] }
	target := fmt.Sprint("/v1/objects/open/", random.IntN(3))
	fields := "Host: cache\r\n" + asA + "\r\n" + pick("", "", "", "Accept: */*\r\nUser-Agent: test\r\n", "Connection: keep-alive\r\n", "datacache-hop: 1\r\n",
		"X: "+strings.Repeat("long ", random.IntN(2000))+"\r\n")
	body := strings.Repeat(pick("a", "bc", "def"), random.IntN(3000))
	switch random.IntN(12) {
	case 0, 1:
		return fmt.Sprintf("PUT %s HTTP/1.1\r\n%sContent-Length: %d\r\n\r\n%s", target, fields, len(body), body)
	case 2:
		return fmt.Sprintf("PUT %s HTTP/1.1\r\n%sTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", target, fields, len(body)+1, body+"!")
	case 3:
		return fmt.Sprintf("PUT %s HTTP/1.1\r\n%sExpect: 100-continue\r\nContent-Length: %d\r\n\r\n%s", target, fields, len(body), body)
	case 4:
		return fmt.Sprintf("%s %s HTTP/1.1\r\n%s%s\r\n", pick("DELETE", "OPTIONS", "HEAD", "HEAD"), target, fields, pick("", "Range: bytes=0-0\r\n"))
	case 5:
		return fmt.Sprintf("GET %s HTTP/1.1\r\nHost: cache\r\n%s\r\n\r\n", target, pick("A: b", "Authorization: Bearer forged", "Authorization: Bearer token-b"))
	case 6:
		return fmt.Sprintf("GET %s HTTP/1.1\r\n%s\r\n", pick("/v1/objects/team/0", "/v1/objects/none/0", "/v1/things", "/v1/objects/open/"), fields)
	case 7, 8:
		return fmt.Sprintf("GET %s HTTP/1.1\r\n%sRange: bytes=%s\r\n%s\r\n", target, fields, pick("0-0", "5-", "-7", "100-9", "9999-", "0-99999"), pick("", "If-Range: x\r\n"))
	}
	return fmt.Sprintf("GET %s HTTP/1.1\r\n%s\r\n", target, fields)
}

// cut takes a text apart, at random places.
func cut(text string, random *rand.Rand) []string {
	places := []int{0, len(text)}
	for range []int{0, 20, 200}[random.IntN(3)] {
		places = append(places, random.IntN(len(text)))
	}
	slices.Sort(places)
	var pieces []string
	for i, place := range places[1:] {
		pieces = append(pieces, text[places[i]:place])
	}
	return pieces
}

// TestWhatIsDoubtfulIsJudgedByNetHTTP sends it on connections that direct has.
func TestWhatIsDoubtfulIsJudgedByNetHTTP(t *testing.T) {
	t.Parallel()
	m := start(t, "alone")
	reference := alone(t, m)
	if got := ask(t, m.address, "PUT", "/v1/objects/open/x", "body", asA); got.Status != 201 {
		t.Fatal(got)
	}
	get := plainGet + asA + "\r\n\r\n"
	for name, text := range notSimple {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			pieces := []string{get, get, strings.Replace(text, "Host: cache\r\n", "Host: cache\r\n"+asA+"\r\n", 1)}
			if diff := cmp.Diff(converse(t, reference, pieces), converse(t, m.address, pieces)); diff != "" {
				t.Errorf("(-net/http +ours):\n%s", diff)
			}
		})
	}
}

// TestRequestsInOnePiece has more of them wait than net/http reads at a time, when a connection goes back to it.
func TestRequestsInOnePiece(t *testing.T) {
	t.Parallel()
	m := start(t, "alone")
	if got := ask(t, m.address, "PUT", "/v1/objects/open/x", "body", asA); got.Status != 201 {
		t.Fatal(got)
	}
	hit := plainGet + asA + "\r\n\r\n"
	miss := strings.Replace(hit, "/x ", "/y ", 1)
	got := converse(t, m.address, []string{hit, hit + miss + strings.Repeat(hit, 200) + miss + strings.Repeat(hit, 200)})
	if hits, misses := strings.Count(got, "200 OK"), strings.Count(got, "404 Not Found"); hits != 403 || misses != 2 {
		t.Errorf("%d hits and %d misses, want 403 and 2", hits, misses)
	}
}

// TestDirectAnswersForNobodyElse asks a server on a connection that direct has for an object of which it holds a stray copy.
func TestDirectAnswersForNobodyElse(t *testing.T) {
	t.Parallel()
	one, two := start(t, "one"), start(t, "two")
	one.router.Set([]router.Member{{Name: "two", Address: two.address}})
	const hop = hopHeader + ": 1"
	for at, body := range map[*member]string{one: "stray", two: "right"} {
		if got := ask(t, at.address, "PUT", "/v1/objects/open/x", body, asA, hop); got.Status != 201 {
			t.Fatal(got)
		}
	}
	there, here := plainGet+asA+"\r\n\r\n", plainGet+asA+"\r\n"+hop+"\r\n\r\n"
	got := converse(t, one.address, []string{here + here + there + here + there + here})
	if bodies := regexp.MustCompile("stray|right").FindAllString(got, -1); !slices.Equal(bodies, []string{"stray", "stray", "right", "stray", "right", "stray", "right"}) {
		t.Errorf("answers %v", bodies)
	}
}
