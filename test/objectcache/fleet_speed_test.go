// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"bytes"
	"cmp"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/kubeflow/datacache/test/kit/proctest"
)

// What PFN published of its Simple Cache Service.
const (
	fleetNodes    = 55
	fleetRequests = 37_000.0         // a second
	fleetBytes    = 75.1 * (1 << 30) // a second
	fleetMean     = fleetBytes / fleetRequests
)

// way is how GETs reach the node that has the object.
type way struct {
	name    string
	targets map[int]*target // by object size
	cost    map[int]float64 // CPU-seconds of all nodes for one GET
}

// perGet is the cost of a GET of size bytes: it has a part for the request, and a part for each byte.
func (w *way) perGet(size float64) float64 {
	small, large := float64(fleetSizes[0]), float64(fleetSizes[1])
	perByte := (w.cost[fleetSizes[1]] - w.cost[fleetSizes[0]]) / (large - small)
	return w.cost[fleetSizes[0]] + perByte*(size-small)
}

var fleetSizes = []int{100 << 10, 10 << 20}

// TestFleetSpeed measures what a GET costs at the node that has the object, and if another node forwards it, and prints what the load of
// PFN's 55 nodes would take.
func TestFleetSpeed(t *testing.T) {
	duration := measureFor(t)
	straight, forwarded := startWays(t)
	for _, w := range []*way{straight, forwarded} {
		for _, size := range fleetSizes {
			var costs []float64
			for range 5 {
				costs = append(costs, 1/w.targets[size].measure(t, http.MethodGet, size, make([]byte, size), 32, duration).perCPU)
			}
			slices.SortFunc(costs, cmp.Compare[float64])
			w.cost[size] = costs[len(costs)/2]
			fmt.Printf("GET %5dk %-9s  %6.0f GETs, %5.2f GB per CPU-second\n", size>>10, w.name, 1/w.cost[size], float64(size)/w.cost[size]/1e9)
		}
	}
	fmt.Printf("%d nodes, %.0f GETs/s, %.1f GiB/s: %.2f MiB a GET, %.0f GETs/s and %.1f Gbit/s a node\n",
		fleetNodes, fleetRequests, fleetBytes/(1<<30), fleetMean/(1<<20), fleetRequests/fleetNodes, fleetBytes/fleetNodes*8/1e9)
	direct := fleetRequests * straight.perGet(fleetMean)
	hops := fleetRequests * (straight.perGet(fleetMean)/fleetNodes + forwarded.perGet(fleetMean)*(fleetNodes-1)/fleetNodes)
	fmt.Printf("CPUs of this kind: %.1f if each GET reaches its node at once, %.1f if it reaches any;\n%.2f and %.2f a node\n",
		direct, hops, direct/fleetNodes, hops/fleetNodes)
	path := os.Getenv("OBJECTCACHE_FLEET")
	if path == "" {
		return
	}
	var out strings.Builder
	fmt.Fprintf(&out, "| %.0f GETs a second of %.2f MiB, %d nodes | to the object's node | to any node |\n|---|---|---|\n", fleetRequests, fleetMean/(1<<20), fleetNodes)
	fmt.Fprintf(&out, "| CPU time of a GET, of all nodes together | %.2f ms | %.2f ms |\n", 1000*direct/fleetRequests, 1000*hops/fleetRequests)
	fmt.Fprintf(&out, "| CPUs of all nodes | %.1f | %.1f |\n| CPUs of a node, for %.0f GETs a second | %.2f | %.2f |\n", direct, hops, fleetRequests/fleetNodes, direct/fleetNodes, hops/fleetNodes)
	if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// startWays runs two object caches, and stores an object of each size at the second one.
func startWays(t *testing.T) (straight, forwarded *way) {
	t.Helper()
	addresses := map[string]string{"a": proctest.FreeAddress(t), "b": proctest.FreeAddress(t)}
	nodes := map[string]*process{}
	for name := range addresses {
		nodes[name] = launch(t, options{args: []string{"--name", name, "--listen", addresses[name], "--peer", "a=" + addresses["a"], "--peer", "b=" + addresses["b"]}})
	}
	for _, p := range nodes {
		p.await()
	}
	straight = &way{name: "straight", targets: map[int]*target{}, cost: map[int]float64{}}
	forwarded = &way{name: "forwarded", targets: map[int]*target{}, cost: map[int]float64{}}
	pids := []int{nodes["a"].server.PID(), nodes["b"].server.PID()}
	for _, size := range fleetSizes {
		body := bytes.Repeat([]byte("0123456789abcdef"), size/16)
		at := func(name, path string) *target {
			return &target{name: name, address: addresses[name], path: path, header: "Authorization: Bearer " + token + "\r\n", pids: pids}
		}
		for i := range 100 {
			path := fmt.Sprintf("/v1/objects/open/%d/", i)
			at("a", path).exchange(t, http.MethodPut, strconv.Itoa(size), body)
			if status, _, err := ask(t, addresses["b"], http.MethodHead, fmt.Sprintf("%d/%d", i, size), "", "Datacache-Hop", "1"); err == nil && status == http.StatusOK {
				straight.targets[size], forwarded.targets[size] = at("b", path), at("a", path)
				break
			}
		}
		if straight.targets[size] == nil {
			t.Fatal("the second object cache owns none of 100 keys")
		}
	}
	return straight, forwarded
}
