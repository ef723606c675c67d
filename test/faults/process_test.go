// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/kubeflow/datacache/cacheserver/node"
	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

// process is a running cacheserver. It is killed at the end of its test.
type process struct {
	t      *testing.T
	name   string
	http   string // host:port of /status and the like
	server *proctest.Process
	output *proctest.Output
	known  string // incarnation of a data node, once it was read
}

// start runs cacheserver with the arguments; env is added to an almost empty environment.
func start(t *testing.T, name, http string, env []string, args ...string) *process {
	t.Helper()
	env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME")}, env...)
	server := proctest.Start(t, name, env, binary, args...)
	return &process{t: t, name: name, http: http, server: server, output: server.Output}
}

// kill kills the process and its group and waits until it is gone.
func (p *process) kill() { p.server.Kill() }

// signal sends a signal to a living process.
func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	p.server.Signal(s)
}

// freeze stops a living process in the middle of what it does, until it is sent SIGCONT.
func (p *process) freeze() {
	p.t.Helper()
	p.signal(syscall.SIGSTOP)
	deadline.Eventually(p.t, func() error {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.server.PID()))
		if err == nil && !strings.Contains(string(text), "\nState:\tT") {
			err = fmt.Errorf("%s is not stopped", p.name)
		}
		return err
	})
}

// alive fails the test if the process has ended.
func (p *process) alive() {
	p.t.Helper()
	p.server.Alive()
}

// exit waits for the process to end by itself and returns its exit code.
func (p *process) exit() int {
	p.t.Helper()
	return p.server.Exit()
}

// logs waits until the process has written a text.
func (p *process) logs(text string) {
	p.t.Helper()
	deadline.Eventually(p.t, func() error {
		if !strings.Contains(p.output.String(), text) {
			return fmt.Errorf("%s has not written %q", p.name, text)
		}
		return nil
	})
}

// get requests one of the process's HTTP pages.
func (p *process) get(path string) (code int, body string, err error) {
	return proctest.Request(deadline.Context(p.t), http.DefaultClient, http.MethodGet, "http://"+p.http+path)
}

// ready reports whether /ready returns 200, and its text.
func (p *process) ready() (bool, string) {
	code, text, err := p.get("/ready")
	if err != nil {
		return false, err.Error()
	}
	return code == http.StatusOK, strings.TrimSpace(text)
}

// statusOf decodes /status into a Status of head or node.
func statusOf[T any](p *process) (T, error) {
	var status T
	code, text, err := p.get("/status")
	if err != nil {
		return status, err
	}
	if code != http.StatusOK {
		return status, fmt.Errorf("/status of %s: %d", p.name, code)
	}
	return status, json.Unmarshal([]byte(text), &status)
}

// incarnation returns that of a data node's process.
func (p *process) incarnation() (string, error) {
	if p.known != "" {
		return p.known, nil
	}
	s, err := statusOf[node.Status](p)
	p.known = s.Incarnation
	return p.known, err
}

// awaitNode waits until a data node's process reports the state with a reason that contains the given text.
func (p *process) awaitNode(want, reason string) node.Status {
	p.t.Helper()
	p.alive()
	var last node.Status
	deadline.Eventually(p.t, func() (err error) {
		last, err = statusOf[node.Status](p)
		if err == nil && (last.State != want || !strings.Contains(last.Reason, reason)) {
			err = fmt.Errorf("%s is %s: %q, want %s: %q", p.name, last.State, last.Reason, want, reason)
		}
		return err
	})
	return last
}

// metric sums a metric over its labels.
func (p *process) metric(name string) float64 {
	p.t.Helper()
	_, text, err := p.get("/metrics")
	if err != nil {
		p.t.Fatalf("metrics of %s: %v", p.name, err)
	}
	var total float64
	for line := range strings.Lines(text) {
		series, value, ok := strings.Cut(strings.TrimSpace(line), " ")
		if base, _, _ := strings.Cut(series, "{"); !ok || base != name {
			continue
		}
		n, err := strconv.ParseFloat(value, 64)
		if err != nil {
			p.t.Fatalf("metric %s of %s: %v", name, p.name, err)
		}
		total += n
	}
	return total
}

// memory is the process's current or peak resident memory, depending on field, in bytes.
func (p *process) memory(field string) int64 {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.server.PID()))
	if err != nil {
		p.t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if fields := strings.Fields(line); len(fields) == 3 && fields[0] == field+":" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			if err != nil {
				p.t.Fatal(err)
			}
			return kib << 10
		}
	}
	p.t.Fatalf("no %s of %s", field, p.name)
	return 0
}
