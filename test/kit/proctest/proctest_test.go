// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kubeflow/datacache/test/kit/deadline"
)

func shell(t testing.TB, script string) *Process {
	t.Helper()
	return Start(t, "shell", []string{"PATH=" + os.Getenv("PATH")}, "sh", "-c", script)
}

// written waits for a complete line of the process's output and returns it.
func written(t *testing.T, p *Process) string {
	t.Helper()
	line := ""
	deadline.Eventually(t, func() error {
		whole := false
		if line, _, whole = strings.Cut(p.Output.String(), "\n"); !whole {
			return errors.New("no line was written")
		}
		return nil
	})
	return line
}

func TestKillEndsTheGroup(t *testing.T) {
	t.Parallel()
	p := shell(t, "sleep 600 & echo $!; wait")
	child, err := strconv.Atoi(written(t, p))
	if err != nil {
		t.Fatal(err)
	}
	p.Alive()
	p.Kill()
	p.Kill() // a second call does nothing
	if code := p.Exit(); code != -1 {
		t.Errorf("exit code %d of a killed process, want -1", code)
	}
	deadline.Eventually(t, func() error { // the orphaned child remains a zombie until init reaps it
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(child) + "/stat")
		if err != nil || strings.Contains(string(stat), ") Z ") {
			return nil //nolint:nilerr // no such process, as wanted
		}
		return errors.New("the child of a killed process lives")
	})
}

func TestChildrenAreFound(t *testing.T) {
	t.Parallel()
	p := shell(t, "sleep 600 >/dev/null 2>&1 & echo $!")
	child, err := strconv.Atoi(written(t, p))
	if err != nil {
		t.Fatal(err)
	}
	deadline.Receive(t, p.exited, "the shell to end")
	if err := p.alone(); err == nil || !strings.Contains(err.Error(), strconv.Itoa(child)+" (sleep)") {
		t.Errorf("the shell left child %d running: %v", child, err)
	}
	if err := syscall.Kill(child, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if code := p.Exit(); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
}

func TestFilesAndOrphansAreFound(t *testing.T) { //nolint:paralleltest // this process has no other child meanwhile
	folder := t.TempDir()
	if err := nothingLeft(folder); err != nil {
		t.Error(err)
	}
	p := shell(t, "echo; sleep 600")
	written(t, p)
	if err := os.WriteFile(filepath.Join(folder, "a-file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := nothingLeft(folder); err == nil || !strings.Contains(err.Error(), "(sh)") || !strings.Contains(err.Error(), "a-file") {
		t.Errorf("a process and a file: %v", err)
	}
}

func TestSignalAndExit(t *testing.T) {
	t.Parallel()
	p := shell(t, "trap 'exit 7' TERM; echo ready; while :; do sleep 0.1; done")
	written(t, p)
	p.Signal(syscall.SIGTERM)
	if code := p.Exit(); code != 7 {
		t.Errorf("exit code %d, want 7", code)
	}
}

// verdict is a testing.TB that records failures and messages.
type verdict struct {
	testing.TB
	failed bool
	logged int
}

func (v *verdict) Error(...any)          { v.failed = true }
func (v *verdict) Errorf(string, ...any) { v.failed = true }
func (v *verdict) Failed() bool          { return v.failed }
func (v *verdict) Logf(string, ...any)   { v.logged++ }

func TestLogIsJudgedAndShown(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, log     string
		left          error
		failed, wants bool // whether the test has failed already, and whether it must fail
	}{
		{name: "fine", log: "ready"},
		{name: "failed before", log: "ready", failed: true, wants: true},
		{name: "left a child", left: errors.New("a child"), wants: true},
		{name: "race", log: "WARNING: DATA RACE", wants: true},
		{name: "panic", log: "panic: no", wants: true},
		{name: "crash", log: "fatal error: all goroutines are asleep", wants: true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			v := &verdict{TB: t, failed: test.failed}
			p := shell(t, "exit 0")
			p.Exit()
			judged := &Process{Name: p.Name, Output: &Output{}, t: v, cmd: p.cmd, exited: p.exited, ended: p.ended, left: test.left}
			if _, err := judged.Output.Write([]byte(test.log)); err != nil {
				t.Fatal(err)
			}
			judged.cleanUp()
			if v.failed != test.wants || (v.logged > 0) != test.wants {
				t.Errorf("failed %v, shown %d times, want %v of both", v.failed, v.logged, test.wants)
			}
		})
	}
}

func TestFreePortsDiffer(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 100 {
		address := FreeAddress(t)
		_, port, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		if n, err := strconv.Atoi(port); err != nil || n < firstPort || n >= endPort || seen[address] {
			t.Fatalf("address %s: outside the range, or given before", address)
		}
		seen[address] = true
	}
}
