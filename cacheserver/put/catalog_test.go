// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package put

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
)

var start = time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)

// joined is a catalog whose nodes are all there and have nothing.
func joined(t *testing.T, nodes int) *Catalog {
	t.Helper()
	c := New(nodes)
	for node := range nodes {
		c.Join(node)
		if err := c.Staged(node, peer.Staged{All: true}, start); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func spec(id, name, mode string, parts, nodes int) peer.Put {
	return peer.Put{ID: id, Name: name, Mode: mode, Parts: parts, Nodes: nodes, Columns: [][3]string{{"id", "int64", "false"}}}
}

func part(number int, rows int64) protocol.PutPart {
	return protocol.PutPart{Part: number, Attempt: 1, Rows: rows, Bytes: 8 * rows, Hash: fmt.Sprintf("%d rows of %d", rows, number)}
}

// stageAll puts parts and answers the orders to publish.
func stageAll(t *testing.T, c *Catalog, id string, parts ...protocol.PutPart) {
	t.Helper()
	for _, p := range parts {
		if err := c.Staged(c.puts[id].Node(p.Part), peer.Staged{ID: id, Parts: []protocol.PutPart{p}}, start); err != nil {
			t.Fatal(err)
		}
	}
}

func publishAll(t *testing.T, c *Catalog, id string, receipts []protocol.PutPart) protocol.Published {
	t.Helper()
	c.Orders()
	if err := c.Publish(id, receipts, start); err != nil {
		t.Fatal(err)
	}
	for _, o := range c.Orders() {
		p := o.Message.Publish
		if p == nil {
			continue
		}
		has := &peer.HeldRows{Publication: p.As, ColumnBytes: make([]int64, 1), Fits: make([]byte, 1)}
		for _, part := range p.Parts {
			has.NodeRows += part.Rows
		}
		if err := c.Staged(o.Node, peer.Staged{ID: id, Has: has}, start); err != nil {
			t.Fatal(err)
		}
	}
	published, done, err := c.Done(id)
	if err != nil || !done {
		t.Fatalf("done: %v, error %v", done, err)
	}
	return published
}

func begin(t *testing.T, c *Catalog, of peer.Put) protocol.Begun {
	t.Helper()
	b, err := c.Begin(of, start)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func wants(t *testing.T, what string, err error, code codes.Code, says string) {
	t.Helper()
	if status.Code(err) != code || !strings.Contains(fmt.Sprint(err), says) {
		t.Errorf("%s: %v, want %v with %q", what, err, code, says)
	}
}

func TestLife(t *testing.T) {
	c := joined(t, 2)
	begin(t, c, spec("put-1", "a", protocol.PutCreate, 4, 2))
	stageAll(t, c, "put-1", part(0, 10), part(2, 20), part(2, 30), part(3, 40))
	if _, err := c.Find("a"); status.Code(err) != codes.NotFound {
		t.Errorf("before it is published: %v", err)
	}
	one := publishAll(t, c, "put-1", []protocol.PutPart{part(0, 10), part(2, 20), part(3, 40)})
	if one.Rows != 70 {
		t.Errorf("%+v: the receipts name 70 rows", one)
	}
	d, err := c.Find("a")
	if err != nil || d.Nodes[0].NodeRows != 10 || d.Nodes[1].NodeRows != 60 || d.Rows != 70 {
		t.Errorf("%+v, error %v", d, err)
	}
	if again := publishAll(t, c, "put-1", nil); again != one {
		t.Errorf("again: %+v, first %+v", again, one)
	}
	wants(t, "other receipts", c.Publish("put-1", []protocol.PutPart{part(0, 10)}, start), codes.FailedPrecondition, one.Dataset)
	_, err = c.Begin(spec("put-2", "a", protocol.PutCreate, 4, 2), start)
	wants(t, "the same name", err, codes.AlreadyExists, one.Dataset[2:])

	begin(t, c, spec("put-3", "a", protocol.PutReplace, 4, 2))
	stageAll(t, c, "put-3", part(1, 5))
	two := publishAll(t, c, "put-3", nil)
	if two.Dataset == one.Dataset {
		t.Error("other rows, the same fingerprint")
	}
	for ref, want := range map[string]int64{"a": 5, one.Dataset: 70, two.Dataset: 5} {
		if d, err := c.Find(ref); err != nil || d.Rows != want {
			t.Errorf("%s: %+v, error %v, want %d rows", ref, d, err, want)
		}
	}
	c.Tick(start.Add(Retain + time.Second))
	_, err = c.Find(one.Dataset)
	wants(t, "a while after it was replaced", err, codes.NotFound, "there are: a")
	if err := c.Drop("a"); err != nil {
		t.Error(err)
	}
	_, err = c.Find("a")
	wants(t, "dropped", err, codes.NotFound, "none")
}

// TestFingerprint checks that neither the name nor the number of nodes nor that of parts matters, but the rows and the numbers of their parts.
func TestFingerprint(t *testing.T) {
	of := func(name string, nodes, parts int, staged ...protocol.PutPart) string {
		c := joined(t, nodes)
		begin(t, c, spec("put-1", name, protocol.PutCreate, parts, nodes))
		stageAll(t, c, "put-1", staged...)
		return strings.Split(publishAll(t, c, "put-1", nil).Dataset, "@")[1]
	}
	want := of("a", 1, 4, part(0, 1), part(3, 2))
	if got := of("b", 3, 7, part(3, 2), part(0, 1)); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := of("a", 1, 4, part(0, 1), part(2, 2)); got == want {
		t.Error("other parts, the same fingerprint")
	}
}

func TestRecipe(t *testing.T) {
	c := joined(t, 1)
	one := spec("put-1", "a", protocol.PutCreate, 2, 1)
	one.Recipe, one.Source = "r", "s"
	begin(t, c, one)
	two := one
	two.ID = "put-2"
	if b := begin(t, c, two); b.Put != "put-1" || !b.Joined {
		t.Errorf("at the same time: %+v", b)
	}
	stageAll(t, c, "put-1", part(0, 1))
	published := publishAll(t, c, "put-1", nil)
	if b := begin(t, c, two); published.Dataset != "a@"+b.Exists {
		t.Errorf("after it was published: %+v", b)
	}
	if got := c.Made("a", "r", "s"); published.Dataset != "a@"+got {
		t.Errorf("made as %q", got)
	}
	if got := c.Made("a", "r", "other"); got != "" {
		t.Errorf("of another source, made as %q", got)
	}
	two.Source = "other"
	if b := begin(t, c, func() peer.Put { two.Mode = protocol.PutReplace; return two }()); b.Joined || b.Exists != "" {
		t.Errorf("of another source: %+v", b)
	}
}

// TestPages asks for parts as the golden file says.
func TestPages(t *testing.T) {
	text, err := os.ReadFile("../../test/golden/wire_puts.json")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Cases []struct {
			Parts        int
			Staged, Lost []int
			Request      struct{ From, Most int }
			Want         struct {
				Parts, Lost []int
				Next        int
			}
		}
	}
	if err := json.Unmarshal(text, &file); err != nil || len(file.Cases) < 50 {
		t.Fatalf("%d cases, error %v", len(file.Cases), err)
	}
	for _, tt := range file.Cases {
		c := joined(t, 1)
		begin(t, c, spec("put-1", "a", protocol.PutCreate, tt.Parts, 1))
		for _, n := range tt.Staged {
			stageAll(t, c, "put-1", part(n, 1))
		}
		c.Leave(0)
		for _, n := range tt.Staged {
			if !slices.Contains(tt.Lost, n) {
				stageAll(t, c, "put-1", part(n, 1))
			}
		}
		s, _, err := c.Status("put-1", tt.Request.From, tt.Request.Most)
		if err != nil {
			t.Fatal(err)
		}
		var numbers []int
		for _, p := range s.Parts {
			numbers = append(numbers, p.Part)
		}
		if !slices.Equal(numbers, tt.Want.Parts) || !slices.Equal(s.Lost, tt.Want.Lost) || s.Next != tt.Want.Next {
			t.Errorf("%+v: parts %v, lost %v, next %d; want %+v", tt.Request, numbers, s.Lost, s.Next, tt.Want)
		}
	}
}

// TestRoom begins puts until there is no room for their records.
func TestRoom(t *testing.T) {
	c := joined(t, 1)
	left := int64(10 << 20)
	c.Room = func(bytes int64) error {
		if bytes > left-Memory(c) {
			return errors.New("needed 1, and 0 left")
		}
		return nil
	}
	begun := 0
	for ; begun < 100; begun++ {
		if _, err := c.Begin(spec(fmt.Sprint("put-", begun), "a", protocol.PutCreate, 4096, 1), start); err != nil {
			wants(t, "without memory", err, codes.ResourceExhausted, "4096 parts and their schema: needed 1, and 0 left")
			break
		}
	}
	if begun != 4 {
		t.Errorf("%d puts of 4096 parts were begun in 10 MiB, want 4", begun)
	}
	if err := c.Abort("put-0"); err != nil {
		t.Fatal(err)
	}
	begin(t, c, spec("put-again", "a", protocol.PutCreate, 4096, 1))
}

func TestOneWriterHasNotAllPuts(t *testing.T) {
	c := joined(t, 1)
	of := func(writer string, n int) peer.Put {
		p := spec(fmt.Sprint(writer, n), fmt.Sprint(writer, n), protocol.PutCreate, 1, 1)
		p.Writer = writer
		return p
	}
	for n := range mostOfWriter {
		begin(t, c, of("team-a/etl", n))
	}
	_, err := c.Begin(of("team-a/etl", mostOfWriter), start)
	wants(t, "one more", err, codes.ResourceExhausted, "128 puts and datasets of team-a/etl")
	for n := range mostPuts - mostOfWriter {
		begin(t, c, of("", n))
	}
	_, err = c.Begin(of("team-b/etl", 0), start)
	wants(t, "of another", err, codes.ResourceExhausted, "256 puts and datasets")
}

// TestMemory compares the memory of the records of puts with what they are said to take.
func TestMemory(t *testing.T) {
	const parts = 20_000
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	c := joined(t, 1)
	of := spec("put-1", "a", protocol.PutCreate, parts, 1)
	before := heap()
	begin(t, c, of)
	var last []protocol.PutPart
	for attempt := range peer.MostAttempts {
		last = last[:0]
		for n := range parts {
			p := part(n, 1)
			p.Attempt, p.Hash = attempt, fmt.Sprintf("%032x", n*peer.MostAttempts+attempt)
			last = append(last, p)
		}
		if err := c.Staged(0, peer.Staged{ID: "put-1", Parts: last}, start); err != nil {
			t.Fatal(err)
		}
	}
	last = nil
	takes := heap() - before
	if says := Memory(c); takes > says || says > 2*takes {
		t.Errorf("%d parts take %d bytes and are said to take %d, want at least as much and at most twice", parts, takes, says)
	}
	publishAll(t, c, "put-1", nil)
	takes = heap() - before
	if says := Memory(c); takes > says || says > 2*takes {
		t.Errorf("%d published parts take %d bytes and are said to take %d", parts, takes, says)
	}
	runtime.KeepAlive(c)
}

func TestLostParts(t *testing.T) {
	c := joined(t, 2)
	begin(t, c, spec("put-1", "a", protocol.PutCreate, 4, 2))
	stageAll(t, c, "put-1", part(0, 1), part(2, 1), part(3, 1))
	c.Leave(1)
	wants(t, "a node is away", c.Publish("put-1", nil, start), codes.Unavailable, "data node 1")
	c.Join(1)
	if err := c.Staged(1, peer.Staged{All: true}, start); err != nil { // without its parts
		t.Fatal(err)
	}
	if s, _, err := c.Status("put-1", 0, 0); err != nil || fmt.Sprint(s.Lost) != "[2 3]" || len(s.Parts) != 1 {
		t.Errorf("%+v, error %v", s, err)
	}
	wants(t, "without receipts", c.Publish("put-1", nil, start), codes.FailedPrecondition, "parts 2-3 are lost")
	wants(t, "with receipts", c.Publish("put-1", []protocol.PutPart{part(0, 1), part(2, 1)}, start), codes.FailedPrecondition, "parts 2 are lost")
	stageAll(t, c, "put-1", part(2, 1), part(3, 1))
	publishAll(t, c, "put-1", nil)
	c.Leave(0)
	_, err := c.Find("a")
	wants(t, "a node is away", err, codes.Unavailable, "data node 0")
	c.Join(0)
	if err := c.Staged(0, peer.Staged{All: true}, start); err != nil {
		t.Fatal(err)
	}
	_, err = c.Find("a")
	wants(t, "its rows are lost", err, codes.FailedPrecondition, "parts 0 of dataset a are lost: put it again")
	if _, err := c.Begin(spec("put-2", "a", protocol.PutCreate, 4, 2), start); err != nil {
		t.Errorf("put again: %v", err)
	}
}

func TestTTL(t *testing.T) {
	c := joined(t, 1)
	of := spec("put-1", "a", protocol.PutCreate, 2, 1)
	of.TTL = 60
	begin(t, c, of)
	if got := c.Tick(start.Add(59 * time.Second)); got != nil {
		t.Errorf("%v was given up too early", got)
	}
	c.Orders()
	if got := c.Tick(start.Add(61 * time.Second)); len(got) != 1 || c.Orders()[0].Message.Unput == nil {
		t.Errorf("%v was given up, want a", got)
	}
	wants(t, "after that", c.Publish("put-1", nil, start), codes.NotFound, "ttl_s")
}

func TestForeignReports(t *testing.T) {
	c := joined(t, 2)
	begin(t, c, spec("put-1", "a", protocol.PutCreate, 4, 2))
	for _, number := range []int{-1, 2, 4} {
		wants(t, "node 0 reports it", c.Staged(0, peer.Staged{ID: "put-1", Parts: []protocol.PutPart{part(number, 1)}}, start), codes.InvalidArgument, fmt.Sprint(number))
	}
	c.Orders()
	if err := c.Staged(0, peer.Staged{ID: "put-9", Parts: []protocol.PutPart{part(0, 1)}}, start); err != nil {
		t.Fatal(err)
	}
	if o := c.Orders(); len(o) != 1 || o[0].Message.Unput == nil {
		t.Errorf("for an unknown put: %+v", o)
	}
}

func TestRanges(t *testing.T) {
	for want, numbers := range map[string][]int{"1": {1}, "0-2, 5, 7-8": {8, 7, 5, 2, 1, 0}, "0, 2, 4, 6, 8, 10, 12, 14, 16, 18, and 2 more": {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22}} {
		if got := ranges(numbers); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestUsedByAWriter(t *testing.T) {
	c := joined(t, 2)
	for i, writer := range []string{"team-a/etl", "team-a/etl", "", "team-b/etl"} {
		of := spec(fmt.Sprintf("put-%d", i), fmt.Sprint("d", i), protocol.PutCreate, 4, 2)
		of.Writer = writer
		begin(t, c, of)
		stageAll(t, c, of.ID, part(0, 10), part(2, 20))
	}
	stageAll(t, c, "put-0", part(2, 30))
	used := func(what string, want int64) {
		t.Helper()
		if got := Used(c, "team-a/etl"); got != 8*want {
			t.Errorf("%s: %d bytes, want those of %d rows", what, got, want)
		}
	}
	used("staged, one part twice", 90)
	publishAll(t, c, "put-0", nil)
	used("published, without the other attempt", 70)
	again := New(2)
	for node := range 2 {
		again.Join(node)
		of := c.puts["put-0"].Put
		report := peer.Staged{Put: &of, ID: of.ID, Parts: []protocol.PutPart{part(2*node, 10)}}
		if err := again.Staged(node, report, start); err != nil {
			t.Fatal(err)
		}
	}
	if got := Used(again, "team-a/etl"); got != 8*20 {
		t.Errorf("a head that has restarted counts %d bytes, want 160", got)
	}
	if err := c.Drop("d0"); err != nil {
		t.Fatal(err)
	}
	used("dropped", 30)
	c.Tick(start.Add(usualTTL + time.Second))
	used("given up", 0)
}

// TestADropEndsWhenAllNodesHaveFreedIt checks that a dataset whose drop has ended can't come back: a node that did not hear of it, as its connection broke, has
// files and would bring it to a head that has restarted.
func TestADropEndsWhenAllNodesHaveFreedIt(t *testing.T) {
	c := joined(t, 2)
	begin(t, c, spec("put-1", "a", protocol.PutCreate, 4, 2))
	stageAll(t, c, "put-1", part(0, 10), part(2, 20))
	of := publishAll(t, c, "put-1", nil)
	if err := c.Drop("a"); err != nil {
		t.Fatal(err)
	}
	freed := func(node int) {
		t.Helper()
		if err := c.Staged(node, peer.Staged{ID: "put-1", Freed: true}, start); err != nil {
			t.Fatal(err)
		}
	}
	told := func(node int) (ids []string) {
		for _, o := range c.Orders() {
			if o.Node == node && o.Message.Unput != nil {
				ids = append(ids, o.Message.Unput.ID)
			}
		}
		return ids
	}
	left := func(want string) {
		t.Helper()
		if got, by := Freeing(c, "a"), Freeing(c, of.Dataset); got != want || by != want {
			t.Errorf("nodes %q, by fingerprint %q, may have rows, want %q", got, by, want)
		}
	}
	left("0-1")
	freed(0)
	left("1")
	c.Leave(1) // it has not heard of the drop
	told(1)
	c.Join(1)
	if err := c.Staged(1, peer.Staged{All: true}, start); err != nil {
		t.Fatal(err)
	}
	if ids := told(1); len(ids) != 1 || ids[0] != "put-1" {
		t.Errorf("node 1 is told to free %v, want put-1", ids)
	}
	if err := c.Drop("a"); err != nil {
		t.Errorf("the client asks again: %v", err)
	}
	freed(1)
	left("")
	wants(t, "a second drop", c.Drop("a"), codes.NotFound, "no dataset")
}
