// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package proctest runs the real cacheserver, and other servers, as processes that end with their test (Linux only).
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
	"time"
)

// shown is how many bytes of its log, from the end, a process shows when its test fails.
const shown = 8 << 10

// inexcusable is what no fault that a test injects may bring into a server's log.
var inexcusable = []string{"DATA RACE", "a call panicked", "panic:", "fatal error:", "goroutine 1 ["}

// Process is a running program, or one that has ended. Only Start makes one; the zero value is of no use. Kill may be
// called from any goroutine; what can fail the test only from the test's own, as t.FailNow says.
type Process struct {
	Name   string  // as messages call it
	Output *Output // what it has written to stdout and stderr

	t     testing.TB
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process is gone
}

// Start runs a program with exactly the environment env ("name=value"), in a process group of its own; if it can't, the test
// ends. Nobody needs to release it: when the test ends, the group is killed, and the process' log fails the test if it shows a
// race or a panic, and is shown if the test has failed. The group's leader dies with the test binary, even a killed one.
func Start(t testing.TB, name string, env []string, program string, args ...string) *Process {
	t.Helper()
	p := &Process{Name: name, Output: &Output{}, t: t, ended: make(chan struct{})}
	p.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), program, args...) // t.Context() is over before cleanUp
	p.cmd.Env = env
	p.cmd.Stdout, p.cmd.Stderr = p.Output, p.Output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go func() {
		defer close(p.ended)
		_ = p.cmd.Wait() // the exit code is looked at where a test cares
	}()
	t.Cleanup(p.cleanUp)
	return p
}

// cleanUp kills the process and shows its log if the test failed or the log shows what no fault excuses.
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

// PID is the process' number. It may be another process' once this one has ended.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Kill ends the process and its group at once and waits until it is gone. One that has ended is left alone.
func (p *Process) Kill() {
	select {
	case <-p.ended:
		return
	default:
	}
	_ = syscall.Kill(-p.PID(), syscall.SIGKILL) // gone meanwhile is as good
	<-p.ended
}

// Signal sends a signal to the process, not to its group. One that has ended ends the test.
func (p *Process) Signal(s os.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatalf("send %s to %s: %v", s, p.Name, err)
	}
}

// Alive ends the test if the process has ended.
func (p *Process) Alive() {
	p.t.Helper()
	select {
	case <-p.ended:
		p.t.Fatalf("%s has ended: %s", p.Name, p.cmd.ProcessState)
	default:
	}
}

// Exit waits for the process to end by itself and returns its exit code, -1 after a signal. One that still runs after within
// ends the test.
func (p *Process) Exit(within time.Duration) int {
	p.t.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		p.t.Fatalf("%s still runs after %s", p.Name, within)
		return -1
	}
}

// Output collects what a process writes. Its zero value is empty and ready; any number of goroutines may use one.
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

// String is all that was written until now.
func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}
