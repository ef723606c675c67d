// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kubeflow/datacache/cacheserver/epoch"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/disktest"
	"github.com/kubeflow/datacache/test/kit/icetest"
)

// inFiles starts a cluster of two data nodes whose rows are in files below dir too.
func inFiles(t *testing.T, l *lake, dir string) *cluster {
	t.Helper()
	c := newCluster(t, l, 2)
	c.nodeArgs = []string{"--spill-dir", dir, "--memory-limit", "256Mi"}
	c.startAll()
	c.await(protocol.StateReady)
	return c
}

// stopAll ends all processes, which leave their files.
func (c *cluster) stopAll() {
	c.t.Helper()
	for _, p := range append(slices.Clone(c.nodes), c.head) {
		p.signal(syscall.SIGTERM)
		p.exit()
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
		c.await(protocol.StateReady)
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
	c.nodes[0].exit()
	files, err := filepath.Glob(filepath.Join(dir, "*", "0", "*.rows"))
	if err != nil || len(files) < 2 {
		t.Fatalf("%v: %v", files, err)
	}
	disktest.Damage(t, rand.New(rand.NewPCG(1, 0)), "exchanged", files[0], files[:2])
	c.startNode(0)
	c.awaitNode(0, "Ready", "")
	c.await(protocol.StateReady)
	c.servesAll(2)
	for _, file := range files[:2] {
		c.nodes[0].logs(fmt.Sprintf("spill file %s: written as ", file))
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
	c.await(protocol.StateFailed, files[0])
}

// TestRepairWithLittleMemory reads an epoch of a cache with the smallest memory with which it starts, where each chunk on the disk is broken: the stream goes
// on while one split after the other is decoded again.
func TestRepairWithLittleMemory(t *testing.T) {
	t.Parallel()
	dir, l := t.TempDir(), &lake{t: t, dir: t.TempDir(), width: 2000}
	l.fill(icetest.In(t, l.dir), 2, 10_000, 5_000)
	const process = 96 << 20 // of which the rows get nothing
	c := newCluster(t, l, 1)
	c.nodeArgs = []string{"--spill-dir", dir, "--memory-limit", strconv.Itoa(process + 16<<20)}
	c.startAll()
	reason := c.await(protocol.StateFailed, "no room to load even one row group at a time").Reason
	found := regexp.MustCompile(`: (\d+) bytes \([^)]*\) are needed`).FindStringSubmatch(reason)
	if found == nil {
		t.Fatalf("no number of bytes: %s", reason)
	}
	least, err := strconv.Atoi(found[1])
	if err != nil {
		t.Fatal(err)
	}
	c.stopAll()
	enough := least*16/15 + 16 // a sixteenth is kept for clients
	for _, memory := range []int{enough, least * 3 / 5} {
		c.nodeArgs[3] = strconv.Itoa(process + memory)
		c.startAll()
		c.await(protocol.StateReady)
		if memory < enough { // it has taken the files over: streams have what there is
			c.nodes[0].logs("no memory is set aside for decoding broken chunks")
			c.servesAll(1)
		}
		c.stopAll()
	}
	c.nodeArgs[3] = strconv.Itoa(process + enough)
	c.startAll()
	c.await(protocol.StateReady)
	e := epoch.Epoch{Rows: uint64(l.rows), Seed: 7, Clump: 1, GlobalBatch: 512, Tail: "keep"}
	for _, e.Shuffle = range []bool{false, true} {
		for _, file := range disktest.Files(t, dir) {
			flipChunks(t, file)
		}
		ids, err := c.wholeEpoch(deadline.Context(t), e, epoch.Share{World: 1, Workers: 1})
		if err != nil || len(ids) != l.rows {
			t.Errorf("shuffled %v: %d rows of %d, %v", e.Shuffle, len(ids), l.rows, err)
		}
	}
	for i, file := range disktest.Files(t, dir) { // in place: the data node has the files open
		ways := []string{"a copy of another", "cut", "extended by itself", "random bytes"}
		disktest.Damage(t, rand.New(rand.NewPCG(uint64(i), 0)), ways[i%len(ways)], file, disktest.Files(t, dir))
	}
	e.Number = 1
	if ids, err := c.wholeEpoch(deadline.Context(t), e, epoch.Share{World: 1, Workers: 1}); err != nil || len(ids) != l.rows {
		t.Errorf("after other bytes were written to the files: %d rows of %d, %v", len(ids), l.rows, err)
	}
	if c.nodes[0].metric("datacache_spill_repaired_chunks_total") == 0 {
		t.Error("no chunk was decoded again")
	}
}

// flipChunks flips a bit of the bytes of a spill file at every MiB, in neither its prefix nor its head.
func flipChunks(t *testing.T, name string) {
	t.Helper()
	file, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		t.Fatal(err)
	}
	one := make([]byte, 1)
	for at := int64(8 << 10); at < info.Size()-64<<10; at += 1 << 20 {
		if _, err = file.ReadAt(one, at); err == nil {
			one[0] ^= 1
			_, err = file.WriteAt(one, at)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}
