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

// processes starts programs that end with this process, and keeps their output.
type processes struct {
	logs    string // folder with one file per program
	start   chan func()
	running []*process
}

// process is one program. Its fields are immutable after the start.
type process struct {
	name  string
	cmd   *exec.Cmd
	log   string        // file
	ended chan struct{} // closed when the program has ended
}

// newProcesses returns a starter of programs that writes their output to files in the folder.
//
// Pdeathsig is sent when the *thread* that started a program ends, so a single goroutine, locked to its thread, starts all of them.
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

// run starts a program in the background; env is added to the caller's environment.
func (p *processes) run(name, path string, env []string, args ...string) (*process, error) {
	out, err := os.Create(filepath.Join(p.logs, name+".log"))
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }() // the program has its own descriptor
	cmd := exec.Command(path, args...) // without a context: it runs as long as the cluster, and stop ends it
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

// stop kills all programs, last started first, and waits for their end. They have no state worth a graceful shutdown.
func (p *processes) stop() {
	for _, r := range slices.Backward(p.running) {
		_ = syscall.Kill(-r.cmd.Process.Pid, syscall.SIGKILL) // fails if it has ended already
		<-r.ended
	}
	p.running = nil
	close(p.start)
}

// check returns an error with the last output if a program has ended, since none should.
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
