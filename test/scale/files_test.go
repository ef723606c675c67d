// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/kubeflow/datacache/test/kit/deadline"
)

// filesToPlan is SCALE_FILES, the number of data files to plan and to measure; 0: few, whose cost is not compared with a limit.
var filesToPlan, _ = strconv.Atoi(os.Getenv("SCALE_FILES"))

// few is the number of data files that are always planned: as many as data nodes and head take in 8 turns.
const few = 2048

// planned is what planning cost a head.
type planned struct {
	seconds, cpu float64
	memory       float64 // bytes at most, of the process
	heap         float64 // bytes that it keeps
	footers      int     // read by the process
}

// per writes what a file cost more than those of a smaller plan.
func (p planned) per(files int, small planned) string {
	n := float64(files - few)
	return fmt.Sprintf("%d files: %.1f s, %.1f CPU-s, %d footers by the head; a file: %.0f us CPU, %.0f bytes at most, %.0f bytes kept",
		files, p.seconds, p.cpu, p.footers, 1e6*(p.cpu-small.cpu)/n, (p.memory-small.memory)/n, (p.heap-small.heap)/n)
}

// TestFiles plans an Iceberg table, and a folder, of many files on a store whose requests take 20 ms: footers and manifests are read with
// many requests at a time, each once, and no more of a file than its footer. Data nodes read footers of the table.
func TestFiles(t *testing.T) {
	for _, c := range []struct {
		name   string
		folder bool
		nodes  int
	}{{"table", false, 0}, {"folder", true, 0}, {"table, two data nodes", false, 2}} {
		t.Run(c.name, func(t *testing.T) {
			small := startLake(t, few, c.nodes > 0).plan(t, c.folder, c.nodes)
			t.Logf("%d files: %+v", few, small)
			if filesToPlan > few {
				t.Log(startLake(t, filesToPlan, c.nodes > 0).plan(t, c.folder, c.nodes).per(filesToPlan, small))
			}
		})
	}
}

// plan runs a head, with as many data nodes, until it has planned.
func (l *lake) plan(t *testing.T, folder bool, nodes int) planned {
	t.Helper()
	c := config{Nodes: max(nodes, 100), Endpoint: l.url, Metadata: l.uri(metadataKey)}
	if folder {
		c.Metadata, c.Folder = "", l.uri(dataFolder)
	}
	began := time.Now()
	p := startHead(t, c)
	defer p.stop()
	for i := range nodes {
		c.Join, c.Index = p.flight, i
		defer startHead(t, c).stop()
	}
	status := ""
	deadline.Eventually(t, func() error {
		if status = p.get("/status?nodes=0"); strings.Contains(status, `"state": "Planning"`) {
			return errors.New(status)
		}
		return nil
	})
	cost := planned{seconds: time.Since(began).Seconds(), cpu: p.cpu(), memory: p.peak(), heap: p.heap()}
	if want := fmt.Sprintf(`"total": %d`, l.files); !strings.Contains(status, want) {
		t.Fatalf("status %s\nwant %s", status, want)
	}
	manifests, _, missed := l.manifests.counts()
	if want := (l.files + perManifest - 1) / perManifest; !folder && (manifests != want || missed) {
		t.Errorf("%d requests for %d manifests; %d at the same time: %t", manifests, want, l.manifests.opens-l.manifests.free, !missed)
	}
	footers, bytes, missed := l.heads.counts()
	if missed || footers > l.files+1 || nodes == 0 && footers < l.files {
		t.Errorf("%d requests for %d footers; %d at the same time: %t", footers, l.files, l.heads.opens-l.heads.free, !missed)
	}
	if _, _, missed := l.nodes.counts(); missed || nodes > 0 && footers >= l.files { // a fast head reads most of them itself
		t.Errorf("the head read %d of %d footers; the data nodes read some at the same time: %t", footers, l.files, !missed)
	}
	if bytes > int64(footers)*32<<10 {
		t.Errorf("%d bytes were read for %d footers of files of %d bytes", bytes, footers, len(l.content))
	}
	cost.footers = footers
	return cost
}
