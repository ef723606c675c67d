// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package monitoring

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/proctest"
	"github.com/kubeflow/datacache/test/kit/promtest"
)

const (
	namespace = "team-a"
	cache     = "train-cache"
)

var cacheserver string // the program

func TestMain(m *testing.M) {
	os.Exit(proctest.Run("monitoring", false, func(binary string) int {
		cacheserver = binary
		return m.Run()
	}, "cacheserver", "objectcache"))
}

// TestRealMetrics has Prometheus scrape a cache that is read and an object cache that is used. Every expression of a dashboard gives a
// number, every metric of an alert exists, and docs name all metrics that these servers export, and no others. The tests of
// test/controlplane, test/install and test/scratch check those of the managers.
func TestRealMetrics(t *testing.T) {
	server := promtest.Start(t, repository, append(startCache(t), startObjectCache(t)...)...)
	for _, name := range promtest.Dashboards {
		for _, q := range promtest.Queries(t, repository, name, map[string]string{"namespace": namespace, "cache": cache}) {
			hasNumbers(t, server, name+": "+q.Panel, q.Expr)
		}
	}
	for _, rule := range rules(t).Rules() {
		for _, name := range promtest.Metrics(rule.Expr) {
			hasNumbers(t, server, rule.Alert, name)
		}
	}
	exported, err := server.Metrics()
	if err != nil {
		t.Fatal(err)
	}
	promtest.Documented(t, repository, exported, func(name string) bool {
		return !promtest.OfManager(name) && !promtest.OfScratchVolumes(name)
	})
}

// hasNumbers waits until an expression has a number, unless it names metrics of a manager.
func hasNumbers(t *testing.T, server *promtest.Server, of, expr string) {
	t.Helper()
	if names := promtest.Metrics(expr); slices.ContainsFunc(names, promtest.OfManager) || slices.ContainsFunc(names, promtest.OfScratchVolumes) {
		return
	}
	deadline.Eventually(t, func() error {
		if err := server.HasNumbers(expr); err != nil {
			return fmt.Errorf("%s: %w", of, err)
		}
		return nil
	})
}

// start runs cacheserver until the end of the test, and returns the two addresses of its line "ready DATA HTTP".
func start(t *testing.T, args ...string) (p *proctest.Process, data, url string) {
	t.Helper()
	p = launch(t, args...)
	data, url = addresses(t, p)
	return p, data, url
}

// addresses waits for a server's line "ready DATA HTTP" and returns what it says.
func addresses(t *testing.T, p *proctest.Process) (data, url string) {
	t.Helper()
	data, url, _ = strings.Cut(printed(t, p, "ready"), " ")
	return data, url
}

// launch is start that does not wait.
func launch(t *testing.T, args ...string) *proctest.Process {
	t.Helper()
	return run(t, cacheserver, args...)
}

func run(t *testing.T, program string, args ...string) *proctest.Process {
	t.Helper()
	return proctest.Start(t, filepath.Base(program)+" "+args[0], []string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, program, args...)
}

// printed waits for the line of a process's output that begins with a word, and returns the rest of it.
func printed(t *testing.T, p *proctest.Process, word string) (rest string) {
	t.Helper()
	deadline.Eventually(t, func() error {
		p.Alive()
		_, line, _ := strings.Cut("\n"+p.Output.String(), "\n"+word+" ")
		line, _, whole := strings.Cut(line, "\n")
		if !whole {
			return errors.New("no line " + word)
		}
		rest = line
		return nil
	})
	return rest
}

// during runs work until the end of the test; its error fails the test.
func during(t *testing.T, work func(context.Context) error) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- work(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// file writes a file of the test and returns its path.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	write(t, path, []byte(text))
	return path
}
