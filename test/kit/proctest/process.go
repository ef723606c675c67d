// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package proctest runs the real cacheserver, and other servers, as processes that are killed when their test ends (Linux only).
package proctest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

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

	t      testing.TB
	cmd    *exec.Cmd
	killed atomic.Bool   // Kill has sent SIGKILL to the group
	exited chan struct{} // closed when the process has ended; others of its group may live
	ended  chan struct{} // closed when the whole group has ended
	left   error         // what it left running, if it was not killed; set before ended is closed
}

// Start runs a program with the environment env ("name=value"; nil: that of this process) and this process's TMPDIR, unless env has its own, in
// its own process group; if it can't, the test fails. At the end of the test the group is killed; the test fails if the process had ended and
// left others of its group running, or if its log shows a race or a panic, and the log is shown if the test has failed. The group's leader dies
// with the test binary, even if that is killed.
func Start(t testing.TB, name string, env []string, program string, args ...string) *Process {
	t.Helper()
	p := &Process{Name: name, Output: &Output{}, t: t, exited: make(chan struct{}), ended: make(chan struct{})}
	p.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), program, args...) // t.Context() is canceled before cleanUp
	if env != nil {
		p.cmd.Env = append([]string{"TMPDIR=" + os.TempDir()}, env...)
	}
	p.cmd.Stdout, p.cmd.Stderr = p.Output, p.Output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	go p.wait()
	t.Cleanup(p.cleanUp)
	return p
}

// wait waits for the process, and then for the rest of its group.
func (p *Process) wait() {
	defer close(p.ended)
	for unix.Waitid(unix.P_PID, p.PID(), nil, unix.WEXITED|unix.WNOWAIT, nil) == unix.EINTR {
	}
	close(p.exited) // no other process gets the ID of the group before cmd.Wait
	p.left = deadline.Start().Poll(p.alone)
	_ = syscall.Kill(-p.PID(), syscall.SIGKILL) // cmd.Wait waits for all that write to Output
	_ = p.cmd.Wait()                            // tests that care check the exit code
}

// alone returns an error that names the other processes of the group, unless it was killed.
func (p *Process) alone() error {
	others := living(func(_, group int) bool { return group == p.PID() })
	if len(others) == 0 || p.killed.Load() {
		return nil
	}
	return fmt.Errorf("%s has ended and left running %v", p.Name, others)
}

// cleanUp kills the process, fails the test if it left others running or its log has an inexcusable text, and shows the log if the test failed.
func (p *Process) cleanUp() {
	p.Kill()
	if p.left != nil {
		p.t.Error(p.left)
	}
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

// Kill kills the process and its group and waits until it is gone. If the process has ended, it waits for the rest of the group.
func (p *Process) Kill() {
	select {
	case <-p.exited:
	default:
		p.killed.Store(true)
		_ = syscall.Kill(-p.PID(), syscall.SIGKILL) // fails if it has ended meanwhile
	}
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
