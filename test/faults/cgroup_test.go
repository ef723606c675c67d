// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kubeflow/datacache/test/kit/proctest"
)

// TestMemoryLimitOfControlGroups starts data nodes without --memory-limit in a control group that has no limit of its own, below one with
// 400 MB: they must take their limit from the latter, whatever they see of the hierarchy.
func TestMemoryLimitOfControlGroups(t *testing.T) {
	const limit = 400 << 20
	group := nestedGroup(t, limit)
	want := fmt.Sprintf("memory-limit=%d", limit-80<<20)
	// The process joins the control group before it starts cacheserver.
	join := []string{"sh", "-c", `echo $$ > "$0/cgroup.procs" && exec "$@"`, group}
	tests := []struct {
		name string
		with []string
	}{
		{"the whole hierarchy", nil},
		{"a namespace, with the hierarchy mounted from outside of it", []string{"unshare", "--cgroup"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			http := proctest.FreeAddress(t)
			args := append(append([]string{}, join...), test.with...)
			args = append(args, binary, "node", "--head", proctest.FreeAddress(t), "--index", "0", "--listen", proctest.FreeAddress(t), "--http", http, "--insecure")
			env := []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}
			server := proctest.Start(t, "node-0", env, args[0], args[1:]...)
			p := &process{t: t, name: "node-0", http: http, server: server, output: server.Output}
			p.logs("memory-limit=")
			if !strings.Contains(p.output.String(), want) {
				t.Errorf("the log lacks %s", want)
			}
			p.kill()
		})
	}
}

// nestedGroup creates a control group whose processes may use some bytes of memory, and returns the folder of another one below it that has
// no limit. It skips the test where the machine doesn't allow that.
func nestedGroup(t *testing.T, bytes int64) string {
	t.Helper()
	for _, version := range []struct{ parent, limit string }{
		{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
		{"/sys/fs/cgroup", "memory.max"},
	} {
		outer, err := os.MkdirTemp(version.parent, "datacache-test-")
		if err != nil {
			continue
		}
		t.Cleanup(func() { _ = os.Remove(outer) })
		if err := os.WriteFile(filepath.Join(outer, version.limit), fmt.Append(nil, bytes), 0o600); err != nil {
			t.Logf("set the limit of a control group: %v", err)
			continue
		}
		inner := filepath.Join(outer, "inner")
		if err := os.Mkdir(inner, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = os.Remove(inner) })
		return inner
	}
	t.Skip("no hierarchy of control groups is writable, or it has no memory controller")
	return ""
}
