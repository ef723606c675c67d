// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"context"
	byteorder "encoding/binary"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/test/kit/deadline"
)

const (
	// nodeLimit is the --memory-limit of the attacked data node, headLimit the memory that clients may use in the head.
	nodeLimit, headLimit = 300 << 20, 128 << 20
	// besides is the memory that a process may use in addition to its limit.
	besides = 64 << 20
)

// slack is besides, or more where the race detector needs it.
func slack() int64 {
	if raceEnabled {
		return overhead()
	}
	return besides
}

// many is the size of an attack: n, or DATACACHE_ATTACK times as many.
func many(t *testing.T, n int) int {
	t.Helper()
	text := os.Getenv("DATACACHE_ATTACK")
	if text == "" {
		return n
	}
	times, err := strconv.Atoi(text)
	if err != nil || times < 1 {
		t.Fatalf("DATACACHE_ATTACK: %q, want how many times as much to do", text)
	}
	return n * times
}

// underAttack runs an attack against a cache of the big table with limited memory, for each transport and number of processors.
func underAttack(t *testing.T, attack func(t *testing.T, c *cluster)) {
	t.Helper()
	for _, transport := range transports {
		for _, n := range processors(t) {
			t.Run(fmt.Sprintf("%s, %d processors", transport, n), func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, big(t), 1)
				c.variables = append(c.variables, fmt.Sprintf("GOMAXPROCS=%d", n))
				c.args = append(c.args, "--transport", string(transport))
				c.nodeArgs = append(c.nodeArgs, "--memory-limit", strconv.Itoa(nodeLimit))
				c.startAll()
				c.await("Ready")
				attack(t, c)
			})
		}
	}
}

// headMemory is the variable that keeps the memory of a head within its limit, as pods have it: without it, the heap's size depends on when the
// garbage collector runs. Data nodes set their own limit.
func headMemory() string { return fmt.Sprintf("GOMEMLIMIT=%d", headLimit+slack()/2) }

// within asserts that no process has used more memory than allowed.
func (c *cluster) within() {
	c.t.Helper()
	for p, limit := range map[*process]int64{c.head: headLimit, c.nodes[0]: nodeLimit} {
		p.alive()
		peak := p.memory("VmHWM")
		c.t.Logf("%s took at most %d MiB, its limit is %d", p.name, peak>>20, limit>>20)
		if peak > limit+slack() {
			c.t.Errorf("%s took %d MiB, its limit is %d", p.name, peak>>20, limit>>20)
		}
	}
}

// TestHalfSentRequests makes 500 calls of each kind that announce a message of 4 MiB, or of the maximum of their method, and never
// complete it.
func TestHalfSentRequests(t *testing.T) {
	underAttack(t, func(t *testing.T, c *cluster) {
		var attackers sync.WaitGroup
		for _, attack := range []struct {
			address, method string
			size            int
		}{
			{c.headAddr, "GetFlightInfo", 4 << 20}, {c.headAddr, "GetFlightInfo", 128 << 10}, {c.headAddr, "DoAction", 4 << 20},
			{c.nodeAddrs[0], "DoExchange", 4 << 20}, {c.nodeAddrs[0], "DoExchange", 128 << 10}, {c.nodeAddrs[0], "DoGet", 4 << 20},
		} {
			message := byteorder.BigEndian.AppendUint32([]byte{0}, uint32(attack.size))
			message = append(message, make([]byte, attack.size-1)...)
			attackers.Go(func() {
				client := dialRaw(t, attack.address)
				sent, calls := 0, many(t, 500)
				end := time.Now().Add(10 * time.Second) // of the attack: what the test asserts holds, however many calls that are
				for i := range calls {
					if time.Now().After(end) {
						break
					}
					id := uint32(2*i + 1)
					client.begin(id, attack.method)
					sent += client.send(id, message)
				}
				t.Logf("%s of %d KiB: %d KiB sent, %d of %d calls ended", attack.method, attack.size>>10, sent>>10, client.endedCalls(), calls)
			})
		}
		c.servesBeside()
		attackers.Wait()
		c.survives()
		c.within()
	})
}

// servesBeside asserts that an honest client gets all rows during an attack. The server may ask it to retry.
func (c *cluster) servesBeside() {
	c.t.Helper()
	for range 3 {
		deadline.Eventually(c.t, func() error {
			ids, err := c.shard(deadline.Context(c.t), 0, 1)
			if err != nil {
				return err
			}
			if !slices.Equal(ids, c.lake.all()) {
				c.t.Fatalf("%d rows, not those of the table", len(ids))
			}
			return nil
		})
	}
}

// rowsMessage requests one row many times.
func rowsMessage(t *testing.T, ticket []byte, rows int) []*flight.FlightData {
	t.Helper()
	var sent recorder
	of := arrow.NewSchema([]arrow.Field{{Name: "row", Type: arrow.PrimitiveTypes.Int64}}, nil)
	w := flight.NewRecordWriter(&sent, ipc.WithSchema(of))
	w.SetFlightDescriptor(&flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: ticket})
	builder := array.NewInt64Builder(memory.DefaultAllocator)
	builder.AppendValues(make([]int64, rows), nil)
	if err := w.Write(array.NewRecordBatch(of, []arrow.Array{builder.NewArray()}, int64(rows))); err != nil {
		t.Fatal(err)
	}
	return sent
}

// TestUnreadTakes has clients request a row of 4 KiB many times without reading the response.
func TestUnreadTakes(t *testing.T) {
	underAttack(t, func(t *testing.T, c *cluster) {
		ticket := c.takeTicket()
		whole, part := rowsMessage(t, ticket, 490_000), rowsMessage(t, ticket, 10_000)
		err := c.exchange(deadline.Context(t), whole...) // read completely, and rejected
		wantStatus(t, err, codes.ResourceExhausted, "needed")
		t.Log(err)
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		for i := range many(t, 8) {
			for _, messages := range [][]*flight.FlightData{whole, part} {
				stream, err := service(ctx, t, c.nodeAddrs[0]).DoExchange(ctx)
				if err != nil {
					t.Fatal(err)
				}
				for _, m := range messages {
					if err := stream.Send(m); err != nil {
						t.Logf("take %d: %v", i, err)
						break
					}
				}
			}
		}
		c.servesBeside()
		if err := c.exchangeOnce(ticket); err != nil {
			t.Errorf("an honest exchange beside the attack: %v", err)
		}
		c.within()
		stop()
		c.clientsGone()
		c.survives()
	})
}

// exchangeOnce requests some rows and reads the response.
func (c *cluster) exchangeOnce(ticket []byte) error {
	ctx, done := context.WithCancel(deadline.Context(c.t)) // closes the connection
	defer done()
	stream, err := service(ctx, c.t, c.nodeAddrs[0]).DoExchange(ctx)
	if err != nil {
		return err
	}
	for _, m := range rowsMessage(c.t, ticket, 256) {
		if err := stream.Send(m); err != nil {
			return err
		}
	}
	reader, err := flight.NewRecordReader(stream)
	if err != nil {
		return err
	}
	defer reader.Release()
	if !reader.Next() {
		return reader.Err()
	}
	if got := reader.RecordBatch().NumRows(); got != 256 {
		return fmt.Errorf("%d rows, want 256", got)
	}
	return nil
}

// clientsGone waits until the data node has no memory reserved for clients.
func (c *cluster) clientsGone() {
	c.t.Helper()
	deadline.Eventually(c.t, func() error {
		if held := c.nodes[0].metric("datacache_memory_clients_bytes"); held > 2<<20 {
			return fmt.Errorf("%.0f bytes are still held for clients", held)
		}
		return nil
	})
}

// TestIdleStreams opens many shuffled streams that nobody reads.
func TestIdleStreams(t *testing.T) {
	underAttack(t, func(t *testing.T, c *cluster) {
		shuffled := epochOf(epoch.Epoch{Seed: 1, Shuffle: true, Clump: 1, GlobalBatch: 64, Tail: epoch.Keep}, epoch.Share{World: 1, Workers: 1})
		info, err := c.info(deadline.Context(t), shuffled)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		client := service(ctx, t, c.nodeAddrs[0])
		for i := range many(t, 700) {
			if i%100 == 0 {
				client = service(ctx, t, c.nodeAddrs[0])
			}
			if _, err := client.DoGet(ctx, info.GetEndpoint()[0].GetTicket()); err != nil && status.Code(err) != codes.ResourceExhausted {
				t.Fatal(err)
			}
		}
		deadline.Eventually(t, func() error {
			if open := c.nodes[0].metric("datacache_streams"); open < 100 {
				return fmt.Errorf("%.0f streams are open", open)
			}
			return nil
		})
		t.Logf("%.0f streams, %.0f bytes for clients", c.nodes[0].metric("datacache_streams"), c.nodes[0].metric("datacache_memory_clients_bytes"))
		c.servesBeside()
		c.within()
		stop()
		c.clientsGone()
		c.survives()
	})
}
