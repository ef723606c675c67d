// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"fmt"
	"math"
	"strings"
)

// size is a cache: its data nodes and splits, the ranks that read it, and the readers that each data node reports.
type size struct{ D, S, W, readers float64 }

// The model: bytes and CPU seconds of one head, fitted to the runs in docs/scale.md on the machine that they name. CPU seconds count for
// a machine that seals a ticket in sealing seconds.
const (
	encoded = 110.4 // bytes of a split; depends on the length of names
	folder  = 60    // bytes of a folder's name, once in each part
	folders = 84    // that the table has; consecutive splits are in different ones
	hashed  = 19    // bytes of a split's loaded rows
	held    = 181   // bytes of heap for a split in the head
	sealing = 1.3e-6
)

// outlineBytes is the length of the plan's outline, with digests of the loaded rows.
func outlineBytes(s size) float64 { return 780 + 68*s.D }

// partsBytes is the length of all parts of the plan.
func partsBytes(s size) float64 { return s.S*encoded + s.D*folder*min(folders, s.S/s.D) }

func loadBytes(s size) float64 {
	const digests = 27 // of a node's loaded rows, which the outline has only from Ready on
	return min(s.D, 3)*(partsBytes(s)+s.S*hashed) + s.D*(2*outlineBytes(s)-digests*s.D)
}

func heapBytes(s size) float64 { return 2e6 + 92e3*s.D + held*s.S }

func restartBytes(s size) float64 { return partsBytes(s) + s.S*hashed + outlineBytes(s) }

func restartCPU(s size) float64 { return 0.01 + 1.3e-3*s.D + 2.1e-6*s.S }

func restartPeak(s size) float64 { return 36e6 + 0.28e6*s.D + 400*s.S }

func loadCPU(s size) float64 { return 0.02 + 1.9e-3*s.D + 4e-6*s.S }

func heartbeatCPU(s size) float64 { return s.D * (45e-6 + 3.9e-6*s.readers) }

// Bytes of an endpoint, by kind.
const shardEndpoint, epochEndpoint = 268, 420

// answerBytes is the length of an answer with a number of endpoints.
func answerBytes(s size, endpoints, each float64) float64 { return 550 + 24*s.D + each*endpoints }

func answerCPU(s size, endpoints float64) float64 { return 0.07e-3 + 0.06e-6*s.D + 3e-6*endpoints }

// stormCPU is that of W answers over new connections.
func stormCPU(s size) float64 { return s.W * (0.08e-3 + answerCPU(s, s.D)) }

// stormBytes is the memory that they take. Of more than connected, the others wait.
func stormBytes(s size) float64 {
	const connected, answers = 1920, 8 << 20
	return 2 * (50e3*min(s.W, connected) + min(2*s.W*answerBytes(s, s.D, epochEndpoint), answers)) // twice, for the garbage collector
}

// endpointsInLanes are those of a rank's answer in order version 2.
func endpointsInLanes(s size) float64 { return math.Ceil(s.D/32) + 2 }

// figure is one line of the page.
type figure struct {
	name                string
	unit                string
	predicted, measured float64
	exact               bool // does not depend on the machine's speed
}

// lines writes figures as a table.
func lines(figures []figure) string {
	var out strings.Builder
	out.WriteString("| | predicted | measured | ratio |\n|---|---|---|---|\n")
	for _, f := range figures {
		fmt.Fprintf(&out, "| %s | %s | %s | %.2f |\n", f.name, amount(f.predicted, f.unit), amount(f.measured, f.unit), f.predicted/f.measured)
	}
	return out.String()
}

// amount writes a number with its unit.
func amount(n float64, unit string) string {
	if unit == "ms" || unit == "CPU-s" {
		return fmt.Sprintf("%.2g %s", n, unit)
	}
	for _, step := range []struct {
		from float64
		name string
	}{{1e12, "TB"}, {1e9, "GB"}, {1e6, "MB"}, {1e3, "KB"}} {
		if n >= step.from {
			return fmt.Sprintf("%.3g %s", n/step.from, step.name)
		}
	}
	return fmt.Sprintf("%.3g bytes", n)
}

// goal is the size that the model is for.
var goal = size{D: 1000, S: 1e6, W: 10_000, readers: 64}

// goalLines are what the head costs at the goal.
func goalLines() string {
	var out strings.Builder
	out.WriteString("| | |\n|---|---|\n")
	all, lanes := goal.D, endpointsInLanes(goal)
	for _, l := range []struct {
		name, unit string
		is         float64
	}{
		{"sent to the data nodes while they load", "", loadBytes(goal)},
		{"head's heap", "", heapBytes(goal)},
		{"heartbeats, a second", "CPU-s", heartbeatCPU(goal)},
		{"restart of the head", "CPU-s", restartCPU(goal)},
		{"restart, memory at most", "", restartPeak(goal)},
		{"an epoch's answers to all ranks, from all nodes: CPU", "CPU-s", goal.W * answerCPU(goal, all)},
		{"the same, bytes", "", goal.W * answerBytes(goal, all, epochEndpoint)},
		{"in lanes: CPU", "CPU-s", goal.W * answerCPU(goal, lanes)},
		{"in lanes: bytes", "", goal.W * answerBytes(goal, lanes, epochEndpoint)},
	} {
		fmt.Fprintf(&out, "| %s | %s |\n", l.name, amount(l.is, l.unit))
	}
	fmt.Fprintf(&out, "| connections: all nodes for each rank | %.0f |\n| in lanes, one reader a rank, at most | %.0f |\n", goal.W*all, goal.W*lanes)
	return out.String()
}
