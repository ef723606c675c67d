// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package proctest runs the real cacheserver, and other servers, as processes that are killed when their test ends (Linux only).
package proctest

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/kubeflow/datacache/test/kit/deadline"
)

// shown is how many bytes at the end of a process's log are shown when its test fails.
const shown = 8 << 10

// inexcusable are texts that no injected fault may cause in a server's log.
var inexcusable = []string{"DATA RACE", "a call panicked", "panic:", "fatal error:", "goroutine 1 ["}

// Process is a program that is running or has ended. Start makes one; the zero value can't be used. Kill may be called from any
// goroutine; methods that can fail the test only from the test's own, like t.FailNow.
type Process struct {
	Name   string  // used in messages
	Output *Output // its stdout and stderr

	t     testing.TB
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process is gone
}

// Start runs a program with exactly the environment env ("name=value"; nil: that of this process), in its own process group; if it can't,
// the test fails. At the end of the test the group is killed; the test fails if the process's log shows a race or a panic, and the log is
// shown if the test has failed. The group's leader dies with the test binary, even if that is killed.
func Start(t testing.TB, name string, env []string, program string, args ...string) *Process {
	t.Helper()
	p := &Process{Name: name, Output: &Output{}, t: t, ended: make(chan struct{})}
	p.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), program, args...) // t.Context() is canceled before cleanUp
	p.cmd.Env = env
	p.cmd.Stdout, p.cmd.Stderr = p.Output, p.Output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // tests that care check the exit code
	}()
	t.Cleanup(p.cleanUp)
	return p
}

// cleanUp kills the process, fails the test if the log has an inexcusable text, and shows the log if the test failed.
func (p *Process) cleanUp() {
	p.Kill()
	log := p.Output.String()
	for _, bad := range inexcusable {
		if strings.Contains(log, bad) {
			p.t.Errorf("the log of %s has %q", p.Name, bad)
		}
	}
	if p.t.Failed() {
		if cut := len(log) - shown; cut > 0 {
			log = "... " + log[cut:]
		}
		p.t.Logf("log of %s (pid %d):\n%s", p.Name, p.PID(), log)
	}
}

// PID is the process ID. The system may reuse it after the process has ended.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill kills the process and its group and waits until it is gone. It does nothing if the process has ended.
func (p *Process) Kill() {
	select {
	case <-p.ended:
		return
	default:
	}
	_ = syscall.Kill(-p.PID(), syscall.SIGKILL) // fails if it has ended meanwhile
	<-p.ended
}

// Signal sends a signal to the process, not to its group. If it has ended, the test fails.
func (p *Process) Signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("send %s to %s: %v", s, p.Name, err)
	}
}

// Alive fails the test if the process has ended.
func (p *Process) Alive() {
	p.t.Helper()
	select {
	case <-p.ended:
		p.t.Fatalf("%s has ended: %s", p.Name, p.cmd.ProcessState)
	default:
	}
}

// Exit waits for the process to end by itself and returns its exit code, -1 after a signal. If it runs on, the test fails.
func (p *Process) Exit() int {
	p.t.Helper()
	deadline.Receive(p.t, p.ended, p.Name+" to end")
	return p.cmd.ProcessState.ExitCode()
}

// Output collects the output of a process. Its zero value is ready to use; it is safe for concurrent use.
type Output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

// Write adds to the output. It never fails.
func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

// String returns the output so far.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
