// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/flight"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/test/kit/deadline"
)

// page is where the results are written, if the environment names it; otherwise a small cache is measured.
var page = os.Getenv("SCALE_PAGE")

// TestModel compares the head's bytes and memory with the model: with few data nodes in make test, with up to 300 for docs/scale.md, which
// also has CPU times. These depend on the machine and on what else it does, so nothing is required of them here.
func TestModel(t *testing.T) {
	if page == "" {
		for _, s := range []size{{D: 4, S: 2000, readers: 8, W: 40}, {D: 40, S: 2000, readers: 8, W: 40}} {
			check(t, measure(t, s))
		}
		return
	}
	var text strings.Builder
	text.WriteString(strings.TrimLeft(intro, "\n"))
	seal := sealTime()
	speed := seal / sealing
	fmt.Fprintf(&text, "\nMeasured on a machine that seals a ticket in %.1f us; the model's CPU times are multiplied by %.2f.\n", 1e6*seal, speed)
	for _, s := range []size{{D: 10, S: 1e5, readers: 64, W: 500}, {D: 100, S: 1e5, readers: 64, W: 1000}, {D: 300, S: 1e5, readers: 64, W: 5000}} {
		figures := measure(t, s)
		for i := range figures {
			if figures[i].unit != "" { // CPU time
				figures[i].predicted *= speed
			}
		}
		fmt.Fprintf(&text, "\n## %.0f data nodes, %.0f splits, %.0f readers a node\n\n%s", s.D, s.S, s.readers, lines(figures))
		check(t, figures)
	}
	fmt.Fprintf(&text, "\n## The goal: %.0f data nodes, %.0f ranks, 10^6 splits (computed)\n\n%s%s", goal.D, goal.W, goalLines(), onCluster+measured(t, "cluster")+objects+measured(t, "objects")+"\n"+measured(t, "fleet")+outro)
	if err := os.WriteFile(page, []byte(text.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// measured is what another program has measured and printed, see the Makefile.
func measured(t *testing.T, what string) string {
	t.Helper()
	text, err := os.ReadFile("measured/" + what + ".txt")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// check compares what does not depend on the machine's speed.
func check(t *testing.T, figures []figure) {
	t.Helper()
	for _, f := range figures {
		t.Logf("%-60s predicted %12s measured %12s", f.name, amount(f.predicted, f.unit), amount(f.measured, f.unit))
		if ratio := f.predicted / f.measured; f.exact && (ratio < 0.95 || ratio > 1.05) {
			t.Errorf("%s: %s measured, %s predicted: more than 5 %% apart", f.name, amount(f.measured, f.unit), amount(f.predicted, f.unit))
		}
	}
}

// sealTime is the CPU time of sealing a ticket on this machine.
func sealTime() float64 {
	const n = 50_000
	seal := protocol.NewSealer(make([]byte, 32))
	began := ownCPU()
	for i := range n {
		if _, err := seal.Seal(protocol.Ticket{Kind: protocol.Take, Node: i, Dataset: strings.Repeat("x", 32), Incarnation: "0123456789abcdef"}); err != nil {
			panic(err)
		}
	}
	return (ownCPU() - began) / n
}

// ownCPU is this process's CPU time in seconds.
func ownCPU() float64 {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano()).Seconds()
}

// measure runs a head with stub data nodes: it loads, is asked, restarts without its store, is asked by many at once, and loses all data
// nodes but one.
func measure(t *testing.T, s size) []figure {
	t.Helper()
	c := config{Nodes: int(s.D), Splits: int(s.S)}
	p := startHead(t, c)
	nodes := startStubs(t, c.Nodes, int(s.readers), p)
	p.await("Ready")
	nodes.settle(t)
	figures := []figure{
		{"load: sent to data nodes", "", loadBytes(s), float64(nodes.received.Load()), true},
		{"load: head's CPU", "CPU-s", loadCPU(s), p.cpu(), false},
		{"head's heap", "", heapBytes(s), p.heap(), false},
	}
	if limit := 30e6 + 0.2e6*s.D + 300*s.S; p.heap() > limit {
		t.Errorf("the head's heap is %s, want at most 300 bytes a split", amount(p.heap(), ""))
	}
	window := time.Second
	if page != "" {
		window = 4 * time.Second
	}
	idle := rate(p, window)
	figures = append(figures, figure{"heartbeats, a second", "CPU-s", heartbeatCPU(s), idle, false})
	figures = append(figures, answers(t, p, s, idle)...)
	p.stop()

	nodes.sent.Store(0)
	nodes.recalls.Store(0)
	c.Away = true
	again := startHead(t, c)
	nodes.head.Store(again)
	again.await("Ready")
	figures = append(figures,
		figure{"restart: received from data nodes", "", restartBytes(s), float64(nodes.sent.Load()), true},
		figure{"restart: head's CPU", "CPU-s", restartCPU(s), again.cpu(), false},
		figure{"restart: memory at most", "", restartPeak(s), again.peak(), false},
	)
	switch joins, recalls := nodes.joins.Load(), nodes.recalls.Load(); {
	case joins > 2*int64(c.Nodes):
		t.Skipf("%d sessions of %d data nodes broke: this machine has no time for them, so bytes are not compared", joins-2*int64(c.Nodes), c.Nodes)
	case recalls != int64(c.Nodes)+1:
		t.Errorf("%d recalls, want one for each of %d parts and one for the outline", recalls, c.Nodes)
	}
	figures = append(figures, storm(t, again, s, idle)...)
	lose(t, again, nodes)
	again.stop()
	return figures
}

// settle waits until every data node has got all that it keeps.
func (s *stubs) settle(t *testing.T) {
	t.Helper()
	deadline.Eventually(t, func() error {
		if n := s.readies.Load(); n < int64(len(s.list)) {
			return fmt.Errorf("%d of %d data nodes have got all that they keep", n, len(s.list))
		}
		return nil
	})
}

// rate is the CPU time that a process uses a second.
func rate(p *process, over time.Duration) float64 {
	before, began := p.cpu(), time.Now()
	time.Sleep(over) //nolint:forbidigo // the time that is measured
	return (p.cpu() - before) / time.Since(began).Seconds()
}

// answers measures answers to clients.
func answers(t *testing.T, p *process, s size, idle float64) (figures []figure) {
	t.Helper()
	conn, client := dial(t, p)
	defer conn.Close()
	rows := int64(s.S) * rowsOfSplit
	few := max(int64(s.D)/33, 1)
	late := rows / 20_000 * (few - 1) / few
	for _, r := range []struct {
		name string
		d    *flight.FlightDescriptor
		each float64
	}{
		{"shard", command(`"kind":"shard","index":0,"total":%d`, few), shardEndpoint},
		{"epoch in order, its last part", command(`"kind":"epoch","seed":7,"epoch":0,"shuffle":false,"global_batch":20000,"tail":"drop","rank":17,"world":10000,"start_step":%d`, late), epochEndpoint},
		{"epoch, shuffled", epochOf(17), epochEndpoint},
	} {
		var info *flight.FlightInfo
		times := 3
		if page != "" {
			times = 300
		}
		before, began := p.cpu(), time.Now()
		for range times {
			var err error
			if info, err = client.GetFlightInfo(t.Context(), r.d); err != nil {
				t.Fatal(err)
			}
		}
		used := (p.cpu() - before - idle*time.Since(began).Seconds()) / float64(times)
		endpoints := float64(len(info.GetEndpoint()))
		name := fmt.Sprintf("%s, %.0f endpoints", r.name, endpoints)
		figures = append(figures,
			figure{name + ": bytes", "", answerBytes(s, endpoints, r.each), float64(proto.Size(info)), false},
			figure{name + ": head's CPU", "ms", 1000 * answerCPU(s, endpoints), 1000 * max(used, 0.01e-3), false})
	}
	return figures
}

// lose stops all data nodes but one. The reason that clients get must be short, and its status UNAVAILABLE.
func lose(t *testing.T, p *process, nodes *stubs) {
	t.Helper()
	for _, n := range nodes.list[1:] {
		n.cancel()
	}
	p.await("Degraded")
	deadline.Eventually(t, func() error {
		if lost := strings.Count(p.get("/status"), `"state": "Lost"`); lost < len(nodes.list)-1 {
			return fmt.Errorf("the head has lost %d of %d data nodes", lost, len(nodes.list)-1)
		}
		return nil
	})
	conn, client := dial(t, p)
	defer conn.Close()
	_, err := client.GetFlightInfo(t.Context(), epochOf(0))
	if text := status.Convert(err).Message(); status.Code(err) != codes.Unavailable || len(text) > protocol.MaxReason {
		t.Errorf("with all data nodes but one lost: %s and %d bytes, want Unavailable and at most %d", status.Code(err), len(text), protocol.MaxReason)
	}
}

func dial(t *testing.T, p *process) (*grpc.ClientConn, flight.FlightServiceClient) {
	conn, err := grpc.NewClient("passthrough:///"+p.flight, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1<<30)))
	if err != nil {
		panic(err) // the address is valid
	}
	t.Helper()
	return conn, flight.NewFlightServiceClient(conn)
}

func epochOf(rank int) *flight.FlightDescriptor {
	return command(`"kind":"epoch","seed":7,"epoch":0,"shuffle":true,"global_batch":20000,"tail":"drop","rank":%d,"world":10000`, rank)
}

func command(format string, args ...any) *flight.FlightDescriptor {
	return &flight.FlightDescriptor{Type: flight.DescriptorCMD, Cmd: fmt.Appendf(nil, `{"v":1,`+format+`}`, args...)}
}
