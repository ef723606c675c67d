// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package kubetest

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// processes starts programs that end with this one, and keeps what they say.
type processes struct {
	logs    string // folder: one file a program
	start   chan func()
	running []*process
}

// process is one program. Its fields don't change after it was started.
type process struct {
	name  string
	cmd   *exec.Cmd
	log   string        // file
	ended chan struct{} // closed when the program has ended
}

// newProcesses makes a starter of programs, which keeps their output in the folder.
//
// Pdeathsig is sent when the *thread* that started a program ends, so one goroutine holds one thread for all of them.
func newProcesses(logs string) *processes {
	p := &processes{logs: logs, start: make(chan func())}
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for start := range p.start {
			start()
		}
	}()
	return p
}

// run starts a program in the background; env is put over the caller's own environment.
func (p *processes) run(name, path string, env []string, args ...string) (*process, error) {
	out, err := os.Create(filepath.Join(p.logs, name+".log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }() // the program has a handle of its own
	cmd := exec.Command(path, args...) // without a context: it lives as long as the cluster, and stop ends it
	cmd.Env = append(cmd.Environ(), env...)
	cmd.Stdout, cmd.Stderr = out, out
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	p.start <- func() { started <- cmd.Start() }
	if err := <-started; err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	r := &process{name: name, cmd: cmd, log: out.Name(), ended: make(chan struct{})}
	go func() {
		_ = cmd.Wait() // how it ended is in ProcessState
		close(r.ended)
	}()
	p.running = append(p.running, r)
	return r, nil
}

// stop kills everything and waits for its end, last started first. There is no state worth a polite shutdown.
func (p *processes) stop() {
	for _, r := range slices.Backward(p.running) {
		_ = syscall.Kill(-r.cmd.Process.Pid, syscall.SIGKILL) // gone already is as good
		<-r.ended
	}
	p.running = nil
	close(p.start)
}

// check returns an error when a program has ended, which none should: what it said last.
func (p *processes) check() error {
	for _, r := range p.running {
		if err := r.check(); err != nil {
			return err
		}
	}
	return nil
}

func (r *process) check() error {
	select {
	case <-r.ended:
		return fmt.Errorf("%s has ended (%s); it said last:\n%s", r.name, r.cmd.ProcessState, r.tail(20, ""))
	default:
		return nil
	}
}

// tail returns the last n lines of the log that contain the word.
func (r *process) tail(n int, word string) string {
	text, err := os.ReadFile(r.log)
	if err != nil {
		return err.Error()
	}
	var lines []string
	for line := range bytes.Lines(text) {
		if strings.Contains(string(line), word) {
			lines = append(lines, string(line))
		}
	}
	return strings.Join(lines[max(0, len(lines)-n):], "")
}
