// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/test/kit/disktest"
)

// inFiles starts a cluster of two data nodes whose rows are in files below dir too.
func inFiles(t *testing.T, l *lake, dir string) *cluster {
	t.Helper()
	c := newCluster(t, l, 2)
	c.nodeArgs = []string{"--spill-dir", dir, "--memory-limit", "256Mi"}
	c.startAll()
	c.await(protocol.StateReady, "", soon)
	return c
}

// stopAll ends all processes, which leave their files.
func (c *cluster) stopAll() {
	c.t.Helper()
	for _, p := range append(slices.Clone(c.nodes), c.head) {
		p.signal(syscall.SIGTERM)
		p.exit(prompt)
	}
}

// TestDamagedSpillFiles restarts a cluster after files of its rows were damaged, exchanged, or replaced by something else, each in another way: it serves the
// rows of the table, and the data nodes name the files.
func TestDamagedSpillFiles(t *testing.T) {
	t.Parallel()
	disktest.Rounds(t, 1, func(t *testing.T, r *rand.Rand) {
		dir, l := t.TempDir(), onDisk(t, 4, 600, 100)
		c := inFiles(t, l, dir)
		c.stopAll()
		files := disktest.Files(t, dir)
		if len(files) < 20 {
			t.Fatalf("%d files, want one for each row group", len(files))
		}
		// Of each pair, one file is damaged and the other may be used for that.
		ways, order := disktest.Ways(), r.Perm(len(files))
		damaged := map[string]string{}
		for i, way := range ways {
			if strings.Contains(way, "folder") {
				continue // see TestFolderInPlaceOfASpillFile
			}
			file := files[order[i%len(order)]]
			disktest.Damage(t, r, way, file, []string{file, files[order[(i+len(ways))%len(order)]]})
			damaged[file] = way
		}
		c.startAll()
		c.await(protocol.StateReady, "", soon)
		c.servesAll(3)
		logs := c.nodes[0].output.String() + c.nodes[1].output.String()
		for file, way := range damaged {
			if way != "missing" && way != "a flipped bit" && !strings.Contains(logs, file) {
				t.Errorf("%s: %s: no data node names it", file, way)
			}
		}
	})
}

// TestExchangedSpillFiles restarts only the data node whose two files were exchanged: it loads them again, and says why.
func TestExchangedSpillFiles(t *testing.T) {
	t.Parallel()
	dir, l := t.TempDir(), onDisk(t, 2, 400, 100)
	c := inFiles(t, l, dir)
	c.nodes[0].signal(syscall.SIGTERM)
	c.nodes[0].exit(prompt)
	files, err := filepath.Glob(filepath.Join(dir, "*", "0", "*.rows"))
	if err != nil || len(files) < 2 {
		t.Fatalf("%v: %v", files, err)
	}
	disktest.Damage(t, rand.New(rand.NewPCG(1, 0)), "exchanged", files[0], files[:2])
	c.startNode(0)
	c.awaitNode(0, "Ready", "", soon)
	c.await(protocol.StateReady, "", soon)
	c.servesAll(2)
	for _, file := range files[:2] {
		c.nodes[0].logs(fmt.Sprintf("spill file %s: written as ", file), prompt)
	}
}

// TestFolderInPlaceOfASpillFile starts a cluster that can't write a file, since there is a folder of its name.
func TestFolderInPlaceOfASpillFile(t *testing.T) {
	t.Parallel()
	dir, l := t.TempDir(), onDisk(t, 1, 400, 100)
	c := inFiles(t, l, dir)
	c.stopAll()
	files := disktest.Files(t, dir)
	disktest.Damage(t, rand.New(rand.NewPCG(1, 0)), "a folder", files[0], files)
	c.startAll()
	c.await(protocol.StateFailed, files[0], soon)
}
