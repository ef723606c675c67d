// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// process is one running cacheserver. It is killed when its test ends, whatever the test did.
type process struct {
	t      *testing.T
	name   string
	http   string // host:port of /status and the like
	cmd    *exec.Cmd
	output *output
	ended  chan struct{} // closed when the process is gone
}

// start runs cacheserver with the arguments; env comes on top of almost nothing.
func start(t *testing.T, name, http string, env []string, args ...string) *process {
	t.Helper()
	p := &process{t: t, name: name, http: http, output: &output{}, ended: make(chan struct{})}
	p.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), binary, args...)
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.Getenv("HOME"), "TMPDIR=" + t.TempDir()}, env...)
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
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
func (p *process) cleanUp() {
	p.kill()
	log := p.output.String()
	for _, bad := range []string{"DATA RACE", "a call panicked", "panic:", "fatal error:", "goroutine 1 ["} {
		if strings.Contains(log, bad) {
			p.t.Errorf("the log of %s has %q", p.name, bad)
		}
	}
	if p.t.Failed() {
		const most = 8 << 10
		if cut := len(log) - most; cut > 0 {
			log = "... " + log[cut:]
		}
		p.t.Logf("log of %s (pid %d):\n%s", p.name, p.cmd.Process.Pid, log)
	}
}

// kill ends the process and its group at once and waits until it is gone.
func (p *process) kill() {
	select {
	case <-p.ended:
		return
	default:
	}
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // gone already is as good
	<-p.ended
}

// signal sends a signal to a living process.
func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := syscall.Kill(p.cmd.Process.Pid, s); err != nil {
		p.t.Fatalf("send %s to %s: %v", s, p.name, err)
	}
}

// alive ends the test if the process has ended.
func (p *process) alive() {
	p.t.Helper()
	select {
	case <-p.ended:
		p.t.Fatalf("%s has ended: %s", p.name, p.cmd.ProcessState)
	default:
	}
}

// exit waits for the process to end by itself and gives its exit code.
func (p *process) exit(within time.Duration) int {
	p.t.Helper()
	select {
	case <-p.ended:
		return p.cmd.ProcessState.ExitCode()
	case <-time.After(within):
		p.t.Fatalf("%s still runs after %s", p.name, within)
		return -1
	}
}

// logs waits until the process has written a text.
func (p *process) logs(text string, within time.Duration) {
	p.t.Helper()
	eventually(p.t, within, func() error {
		if !strings.Contains(p.output.String(), text) {
			return fmt.Errorf("%s has not written %q", p.name, text)
		}
		return nil
	})
}

// get reads one of the process' HTTP pages.
func (p *process) get(path string) (code int, body string, err error) {
	ctx, cancel := context.WithTimeout(p.t.Context(), 5*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.http+path, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return response.StatusCode, string(text), err
}

// ready says whether /ready is 200, and its text.
func (p *process) ready() (bool, string) {
	code, text, err := p.get("/ready")
	if err != nil {
		return false, err.Error()
	}
	return code == http.StatusOK, strings.TrimSpace(text)
}

// statusOf reads /status into a Status of head or node.
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

// memory is the process' resident memory now, or its peak, in bytes.
func (p *process) memory(field string) int64 {
	p.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
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

// output collects what a process writes.
type output struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.String()
}

// eventually calls check until it has no objection, or ends the test with the last one.
func eventually(t *testing.T, within time.Duration, check func() error) {
	t.Helper()
	deadline := time.Now().Add(within)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("after %s still: %v", within, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// nextPort is where freeAddress looks next: below the range that the kernel gives to outgoing connections,
// so that an address stays free while its process is down.
var nextPort atomic.Int64

const firstPort, lastPort = 18000, 32000

// freeAddress gives a loopback address that nobody listens on and that no other call was given.
func freeAddress(t *testing.T) string {
	t.Helper()
	offset := int64(os.Getpid()*37) % (lastPort - firstPort)
	for range 1000 {
		port := firstPort + (offset+nextPort.Add(1))%(lastPort-firstPort)
		address := net.JoinHostPort("127.0.0.1", strconv.FormatInt(port, 10))
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", address)
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		listener.Close()
		return address
	}
	t.Fatal("no free port on loopback")
	return ""
}
