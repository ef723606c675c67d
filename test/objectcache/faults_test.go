// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"bufio"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/proctest"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// content returns the object of a key and a round, every part of which shows to which it belongs.
func content(key string, round, size int) string {
	unit := fmt.Sprintf("<%s round %d>", key, round)
	return strings.Repeat(unit, size/len(unit)+1)[:size]
}

// files lists the regular files below a folder, except for those with a store's own state.
func files(t *testing.T, dir string) []string {
	t.Helper()
	var paths []string
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && !slices.Contains([]string{"changes", "changes.old", "alive"}, e.Name()) {
			paths = append(paths, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// TestKillsDuringPut kills the server many times, each time after it received a part of four objects, at random points. Afterwards
// each key must have, complete, the object acknowledged last, or the one being sent.
func TestKillsDuringPut(t *testing.T) {
	t.Parallel()
	random := seedtest.New(t)
	dir := filepath.Join(t.TempDir(), "objects")
	const keys, together = 8, 4
	rounds := seedtest.Cases(15, 50)
	possible := map[string][]string{} // the possible contents of each key; "" is a miss
	for key := range keys {
		possible[fmt.Sprintf("key-%d", key)] = []string{""}
	}
	acknowledged := 0
	for round := range rounds + 1 {
		p := start(t, options{dir: dir})
		for key, bodies := range possible {
			status, got := p.do(http.MethodGet, "open/"+key, "")
			if status == http.StatusNotFound {
				got = ""
			}
			if !slices.Contains(bodies, got) {
				t.Fatalf("round %d: %s has status %d and %d bytes, %.60q..., which is none of the %d things it may have", round, key, status, len(got), got, len(bodies))
			}
			possible[key] = []string{got}
		}
		if left := files(t, filepath.Join(dir, "tmp")); len(left) > 0 {
			t.Fatalf("round %d: %d files of before the kill are in tmp", round, len(left))
		}
		for _, number := range random.Perm(keys)[:together] {
			key := fmt.Sprintf("key-%d", number)
			body := content(key, round, 1+random.IntN(1<<20))
			sent := random.IntN(len(body) + len(body)/2) // a third of them are sent completely
			if p.sendPart(key, body, min(sent, len(body)), random.IntN(2) == 0) {
				possible[key] = []string{body}
				acknowledged++
				continue
			}
			possible[key] = append(possible[key], body)
		}
		p.kill()
	}
	if acknowledged == 0 {
		t.Error("no PUT was acknowledged: the test shows little")
	}
}

// sendPart sends the first bytes of a PUT. If these are all and wait is set, it waits for the acknowledgment.
func (p *process) sendPart(key, body string, sent int, wait bool) (acknowledged bool) {
	p.t.Helper()
	conn, err := (&net.Dialer{}).DialContext(p.t.Context(), "tcp", strings.TrimPrefix(p.url, "http://"))
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { conn.Close() }) // not before the kill: otherwise the server would see the end of the body
	head := fmt.Sprintf("PUT /v1/objects/open/%s HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", key, token, len(body))
	if _, err := conn.Write([]byte(head + body[:sent])); err != nil {
		p.t.Fatal(err)
	}
	if sent < len(body) || !wait {
		return false
	}
	response, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil || response.StatusCode != http.StatusCreated {
		p.t.Fatalf("PUT %s: %v, %v", key, response, err)
	}
	return true
}

func TestFlippedBytes(t *testing.T) {
	t.Parallel()
	random := seedtest.New(t)
	dir := filepath.Join(t.TempDir(), "objects")
	const objects = 100
	p := start(t, options{dir: dir})
	for i := range objects {
		p.put(fmt.Sprintf("open/key-%d", i), content("key", i, 1+random.IntN(5000)))
	}
	p.stop()
	for _, path := range files(t, dir) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		text[random.IntN(len(text))] ^= 1 << random.IntN(8)
		write(t, path, string(text))
	}
	p = start(t, options{dir: dir})
	for i := range objects {
		if status, got := p.do(http.MethodGet, fmt.Sprintf("open/key-%d", i), ""); status != http.StatusNotFound {
			t.Errorf("key-%d: %d, %.40q, want a miss", i, status, got)
		}
	}
	if left := files(t, dir); len(left) > 0 {
		t.Errorf("%d damaged files are still there", len(left))
	}
	if damaged := p.metric("damaged_total"); damaged != objects {
		t.Errorf("metric damaged_total is %g, want %d", damaged, objects)
	}
}

// mounted returns a command that mounts something in a new mount namespace and runs the following arguments there.
func mounted(t *testing.T, mount string) []string {
	t.Helper()
	unshare := need(t, "unshare", "install util-linux")
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	return []string{unshare, "--mount", "sh", "-ec", mount + `; exec "$@"`, "sh"}
}

func TestDiskFull(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := start(t, options{dir: dir, wrap: mounted(t, "mount -t tmpfs -o size=4m none "+dir)})
	const size = 512 << 10
	stored := 0
	for ; ; stored++ {
		key := fmt.Sprintf("open/key-%d", stored)
		status, text := p.do(http.MethodPut, key, content(key, 0, size))
		if status == http.StatusInsufficientStorage {
			break
		}
		if status != http.StatusCreated || stored > 8 {
			t.Fatalf("PUT %d: %d %s", stored, status, text)
		}
	}
	if stored < 4 {
		t.Fatalf("%d objects fit on the disk, want at least 4", stored)
	}
	for i := range stored {
		key := fmt.Sprintf("open/key-%d", i)
		if status, got := p.do(http.MethodGet, key, ""); status != http.StatusOK || got != content(key, 0, size) {
			t.Errorf("GET %s on a full disk: %d, %.40q", key, status, got)
		}
	}
	if status, _ := p.do(http.MethodGet, fmt.Sprintf("open/key-%d", stored), ""); status != http.StatusNotFound {
		t.Errorf("GET of what did not fit: %d, want a miss", status)
	}
	for i := range 2 {
		if status, text := p.do(http.MethodDelete, fmt.Sprintf("open/key-%d", i), ""); status != http.StatusNoContent {
			t.Errorf("DELETE: %d %s", status, text)
		}
	}
	p.put("open/again", content("again", 0, size)) // what failed does not take up space
	if failures := p.metric("disk_failures_total"); failures < 1 {
		t.Errorf("metric disk_failures_total is %g, want what failed", failures)
	}
}

// TestTheDiskKeepsRoom sets limits above the size of the disk: objects must be evicted before it is full.
func TestTheDiskKeepsRoom(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := start(t, options{dir: dir, wrap: mounted(t, "mount -t tmpfs -o size=16m none "+dir), args: []string{"--min-free", "0.5"}})
	const size, objects = 256 << 10, 100
	for i := range objects {
		p.put(fmt.Sprintf("open/key-%d", i), content("key", i, size))
	}
	if bytes := p.metric("bucket_bytes"); bytes > 8<<20 || bytes < 4<<20 {
		t.Errorf("%g bytes on a disk of 16 MiB of which half is to be free", bytes)
	}
	if status, _ := p.do(http.MethodGet, fmt.Sprintf("open/key-%d", objects-1), ""); status != http.StatusOK {
		t.Errorf("GET of the newest: %d", status)
	}
	if failures := p.metric("disk_failures_total"); failures != 0 {
		t.Errorf("metric disk_failures_total is %g", failures)
	}
}

func TestReadOnlyDisk(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "objects")
	p := start(t, options{dir: dir})
	p.put("open/there", "body")
	p.stop()
	wrap := mounted(t, fmt.Sprintf("mount --bind %s %s && mount -o remount,bind,ro %s", dir, dir, dir))
	p = start(t, options{dir: dir, wrap: wrap})
	if status, got := p.do(http.MethodGet, "open/there", ""); status != http.StatusOK || got != "body" {
		t.Errorf("GET: %d %q, want what is there", status, got)
	}
	for method, target := range map[string]string{http.MethodPut: "open/new", http.MethodDelete: "open/there"} {
		if status, _ := p.do(method, target, "x"); status != http.StatusInsufficientStorage {
			t.Errorf("%s: %d, want %d", method, status, http.StatusInsufficientStorage)
		}
	}
	if status, got := p.do(http.MethodGet, "open/there", ""); status != http.StatusOK || got != "body" {
		t.Errorf("GET after that: %d %q, want what is there", status, got)
	}
}

func TestFilesAreReloaded(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	buckets := write(t, filepath.Join(home, "buckets.json"), defaultBuckets)
	tokens := write(t, filepath.Join(home, "tokens"), token+" team-a")
	p := start(t, options{buckets: buckets, tokens: tokens})
	for i := range 8 {
		p.put(fmt.Sprintf("team/%d", i), content("key", i, 1<<20))
	}
	write(t, buckets, "{")
	deadline.Eventually(t, func() error {
		if p.metric("buckets_file_rejected") != 1 {
			return fmt.Errorf("the bad file was not noticed")
		}
		return nil
	})
	if status, _ := p.do(http.MethodGet, "team/7", ""); status != http.StatusOK {
		t.Errorf("GET under a bad buckets file: %d, want the old one's answer", status)
	}
	write(t, buckets, strings.ReplaceAll(defaultBuckets, "512Mi", "4Mi"))
	deadline.Eventually(t, func() error {
		if bytes := p.metric("bucket_bytes"); bytes > 4<<20 {
			return fmt.Errorf("%g bytes under a quota of 4 MiB", bytes)
		}
		return nil
	})
	if status, _ := p.do(http.MethodGet, "team/7", ""); status != http.StatusOK {
		t.Errorf("GET of the newest: %d, want it kept", status)
	}
	if testing.Short() {
		return // what is left takes a minute
	}
	write(t, tokens, "another team-a")
	deadline.Eventually(t, func() error { // reviews of known tokens are cached for a minute
		if status, _ := p.do(http.MethodGet, "team/7", ""); status != http.StatusUnauthorized {
			return fmt.Errorf("a token that was taken out: %d, want %d", status, http.StatusUnauthorized)
		}
		return nil
	})
}

func TestPeers(t *testing.T) {
	t.Parallel()
	addresses := map[string]string{}
	var peers []string
	for _, name := range []string{"here", "there", "elsewhere"} {
		addresses[name] = proctest.FreeAddress(t)
		peers = append(peers, "--peer", name+"="+addresses[name])
	}
	processes := map[string]*process{}
	for name, address := range addresses {
		processes[name] = start(t, options{args: append([]string{"--name", name, "--listen", address}, peers...)})
	}
	const objects = 60
	for i := range objects {
		processes["here"].put(fmt.Sprintf("open/file:///x//%d", i), content("key", i, 10000))
	}
	for i := range objects {
		deadline.Eventually(t, func() error { // a member that answers late is not asked for a while
			status, got := processes["there"].do(http.MethodGet, fmt.Sprintf("open/file:///x//%d", i), "")
			if status == http.StatusOK && got != content("key", i, 10000) {
				t.Fatalf("GET %d: %.40q", i, got)
			}
			if status != http.StatusOK {
				return fmt.Errorf("GET %d: %d", i, status)
			}
			return nil
		})
	}
	lost := processes["elsewhere"].metric("bucket_objects")
	if lost == 0 || lost == objects {
		t.Fatalf("one of three has %g of %d objects", lost, objects)
	}
	processes["elsewhere"].kill()
	deadline.Eventually(t, func() error {
		misses := 0
		for i := range objects {
			if status, _ := processes["here"].do(http.MethodGet, fmt.Sprintf("open/file:///x//%d", i), ""); status == http.StatusNotFound {
				misses++
			}
		}
		if misses != int(lost) {
			return fmt.Errorf("%d misses after a member with %g objects was lost", misses, lost)
		}
		return nil
	})
	if failed := processes["here"].metric("forwards_total"); failed == 0 {
		t.Error("metric forwards_total is 0")
	}
}
