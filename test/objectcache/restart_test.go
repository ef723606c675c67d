// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

// site is the object caches of one site, which share the keys and keep their folders and addresses when they start again.
type site struct {
	t         *testing.T
	addresses []string
	dirs      []string
	wraps     [][]string // by node: see options
	args      []string
	nodes     []*process
}

func newSite(t *testing.T, n int, args ...string) *site {
	t.Helper()
	s := &site{t: t, args: args, wraps: make([][]string, n), nodes: make([]*process, n)}
	for i := range n {
		s.addresses, s.dirs = append(s.addresses, proctest.FreeAddress(t)), append(s.dirs, filepath.Join(t.TempDir(), "objects"))
		s.args = append(s.args, "--peer", fmt.Sprintf("node-%d=%s", i, s.addresses[i]))
	}
	return s
}

// launch starts a node without waiting.
func (s *site) launch(i int) {
	s.t.Helper()
	own := append([]string{"--name", fmt.Sprintf("node-%d", i), "--listen", s.addresses[i]}, s.args...)
	s.nodes[i] = launch(s.t, options{dir: s.dirs[i], wrap: s.wraps[i], args: own})
}

// startAll starts the nodes one after the other, each once the one before is serving.
func (s *site) startAll() {
	s.t.Helper()
	for i := range s.nodes {
		s.launch(i)
		s.nodes[i].await()
	}
}

func (s *site) killAll() {
	for _, p := range s.nodes {
		p.kill()
	}
}

// missing counts the objects 0 to n-1 that are misses at a node, and fails the test if another answer than the newest object comes.
func (s *site) missing(node, n int, newest func(i int) string) (missing int) {
	s.t.Helper()
	for i := range n {
		status, got := s.nodes[node].do(http.MethodGet, fmt.Sprintf("open/%d", i), "")
		switch {
		case status == http.StatusNotFound:
			missing++
		case status != http.StatusOK || got != newest(i):
			s.t.Errorf("object %d at node %d: %d %.40q, want %.40q or a miss", i, node, status, got, newest(i))
		}
	}
	return missing
}

// TestAllRestartTogether kills all object caches at once and starts them again, one after the other: nothing is lost. When one does not
// start again, the objects of the others are there; if the list of members can change, once it is off the list.
func TestAllRestartTogether(t *testing.T) {
	t.Parallel()
	for _, fixed := range []bool{true, false} {
		t.Run(fmt.Sprintf("fixed=%v", fixed), func(t *testing.T) {
			t.Parallel()
			const objects = 43
			s := newSite(t, 3)
			peers := filepath.Join(t.TempDir(), "peers")
			if !fixed {
				write(t, peers, s.lines(3))
				s.args = []string{"--peers", peers}
			}
			s.startAll()
			body := func(i int) string { return content("key", i, 5000) }
			for i := range objects {
				s.nodes[0].put(fmt.Sprintf("open/%d", i), body(i))
			}
			own := int(s.nodes[2].metric("bucket_objects"))
			s.killAll()
			s.startAll()
			for node := range s.nodes {
				deadline.Eventually(t, func() error { // the first ones wait for the last
					if missing := s.missing(node, objects, body); missing > 0 {
						return fmt.Errorf("node %d: %d of %d objects are lost", node, missing, objects)
					}
					return nil
				})
			}
			s.killAll()
			s.launch(0)
			s.launch(1)
			s.nodes[0].await()
			s.nodes[1].await()
			moved := 0
			if !fixed {
				if missing := s.missing(0, objects, body); missing != objects {
					t.Errorf("%d of %d objects are missing while one that may have replaced them has not answered", missing, objects)
				}
				write(t, peers, s.lines(2))
				moved = 3
			}
			deadline.Eventually(t, func() error {
				if missing := s.missing(0, objects, body); missing < own || missing > own+moved {
					return fmt.Errorf("%d of %d objects are missing, want the %d of the node that is away", missing, objects, own)
				}
				return nil
			})
		})
	}
}

// lines are the first n nodes in the format of --peers.
func (s *site) lines(n int) (text string) {
	for i, address := range s.addresses[:n] {
		text += fmt.Sprintf("node-%d %s\n", i, address)
	}
	return text
}

// TestPowerCut cuts the power of all object caches: each starts again with what had reached its disk, a file system of its own whose image
// is copied while the object caches run. With --sync that is all that was acknowledged; without, what the kernel had written.
func TestPowerCut(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{"with --sync": {"--sync"}, "without": nil} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const objects = 40
			s := newSite(t, 3, args...)
			images := s.mountImages()
			s.startAll()
			round := func(i int) int { return min(i%4, 1) } // a quarter is not replaced
			for i := range objects {
				s.nodes[0].put(fmt.Sprintf("open/%d", i), content("key", 0, 3000+i*100))
			}
			if args == nil {
				s.sync()
			}
			for i := range objects {
				if key := fmt.Sprintf("open/%d", i); round(i) > 0 {
					s.nodes[1].put(key, content("key", round(i), 3000+i*100))
				}
			}
			for i := objects; i < 2*objects; i++ {
				s.nodes[1].put(fmt.Sprintf("open/%d", i), content("key", 0, 3000))
				if i%2 == 0 {
					s.nodes[1].do(http.MethodDelete, fmt.Sprintf("open/%d", i), "")
				}
			}
			s.cut(images)
			s.startAll()
			for i := range 2 * objects {
				status, got := s.nodes[i%3].do(http.MethodGet, fmt.Sprintf("open/%d", i), "")
				old, newest := content("key", 0, max(len(got), 1)), content("key", round(i), max(len(got), 1))
				switch {
				case args != nil && i < objects && (status != http.StatusOK || got != newest):
					t.Errorf("object %d: %d %.40q, want what was acknowledged", i, status, got)
				case args != nil && i >= objects && (status == http.StatusOK) == (i%2 == 0):
					t.Errorf("object %d: %d, want it removed = %v", i, status, i%2 == 0)
				case args == nil && i < objects && round(i) == 0 && status != http.StatusOK:
					t.Errorf("object %d, which had reached the disk: %d", i, status)
				case status == http.StatusOK && got != old && got != newest:
					t.Errorf("object %d: %.40q, which was never stored", i, got)
				}
			}
		})
	}
}

// mountImages gives each node a file system of its own and returns the images.
func (s *site) mountImages() (images []string) {
	s.t.Helper()
	mkfs := need(s.t, "mkfs.ext4", "install e2fsprogs")
	for i, dir := range s.dirs {
		image := filepath.Join(s.t.TempDir(), "disk")
		if err := os.WriteFile(image, nil, 0o600); err != nil {
			s.t.Fatal(err)
		}
		if err := os.Truncate(image, 64<<20); err != nil {
			s.t.Fatal(err)
		}
		if out, err := exec.CommandContext(s.t.Context(), mkfs, "-q", image).CombinedOutput(); err != nil {
			s.t.Fatalf("mkfs.ext4: %v: %s", err, out)
		}
		images = append(images, image)
		s.mount(i, dir, image)
	}
	return images
}

func (s *site) mount(i int, dir, image string) {
	s.t.Helper()
	mount := filepath.Dir(dir) // the server's own folder is below it
	s.wraps[i] = mounted(s.t, fmt.Sprintf("mount -o loop %s %s", image, mount))
}

// sync makes the kernel write what it has of the nodes' file systems.
func (s *site) sync() {
	s.t.Helper()
	for i, p := range s.nodes {
		dir, err := os.Open(fmt.Sprintf("/proc/%d/root%s", p.server.PID(), s.dirs[i]))
		if err != nil {
			s.t.Fatal(err)
		}
		defer dir.Close()
		if err := unix.Syncfs(int(dir.Fd())); err != nil {
			s.t.Fatal(err)
		}
	}
}

// cut copies the images as they are now, kills the nodes, and lets them start again with the copies.
func (s *site) cut(images []string) {
	s.t.Helper()
	for i, image := range images {
		copied := image + "-at-the-cut"
		if err := copyFile(image, copied); err != nil {
			s.t.Fatal(err)
		}
		s.mount(i, s.dirs[i], copied)
	}
	s.killAll()
}

func copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	if _, err := io.Copy(out, in); err != nil {
		return err
	}
	return out.Close()
}
