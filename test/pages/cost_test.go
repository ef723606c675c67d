// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/test/kit/icetest"
	"github.com/kubeflow/datacache/test/kit/readtest"
)

const (
	// measured is how long BenchmarkPage measures.
	measured = 20 * time.Second
	// listeners is how many look at the page, and most the most that they may cost, in milliseconds of CPU time a second: 1 % of a core.
	listeners = 10
	most      = 10.0
)

// BenchmarkPage reports the CPU time of a cache in one process, in milliseconds a second, while nobody looks at its page and while ten
// do: of a cache that nobody reads, and of one that a rank reads slowly, whose page changes every second. It fails if the ten cost
// more than 1 % of a core.
func BenchmarkPage(b *testing.B) {
	program := build(b)
	table := icetest.Local(b).Plain("events", 2, 4, 5000, 1000)
	for _, reading := range []bool{false, true} {
		var spent [2]float64
		for i, looking := range []int{0, listeners} {
			b.Run(fmt.Sprintf("reading=%v/listeners=%d", reading, looking), func(b *testing.B) {
				url, flight, pid := startServer(b, program, table.Metadata())
				for range looking {
					lookAt(b, url)
				}
				if reading {
					readSlowly(b, flight)
				}
				time.Sleep(3 * time.Second) //nolint:forbidigo // what starting costs is not measured
				before := cpu(b, pid)
				time.Sleep(measured) //nolint:forbidigo // the time that is measured
				spent[i] = float64((cpu(b, pid) - before).Milliseconds()) / measured.Seconds()
				b.ReportMetric(spent[i], "cpu-ms/s")
				b.ReportMetric(0, "ns/op")
			})
		}
		if cost := spent[1] - spent[0]; cost > most {
			b.Errorf("reading=%v: %d listeners cost %.1f ms of CPU time a second, want at most %.1f", reading, listeners, cost, most)
		}
	}
}

// lookAt listens to the events of a page until the end of the benchmark.
func lookAt(b *testing.B, url string) {
	b.Helper()
	request, err := http.NewRequestWithContext(b.Context(), http.MethodGet, url+"/events", nil)
	if err != nil {
		b.Fatal(err)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil || response.StatusCode != http.StatusOK {
		b.Fatal(response, err)
	}
	go func() { _, _ = io.Copy(io.Discard, response.Body) }() // until the body is closed
	b.Cleanup(func() { _ = response.Body.Close() })
}

// readSlowly reads an epoch of 20,000 rows twice a second, until the end of the benchmark.
func readSlowly(b *testing.B, head string) {
	b.Helper()
	r := readtest.New(head)
	ctx, cancel := context.WithCancel(b.Context())
	failed := make(chan error, 1)
	go func() {
		var err error
		for ; err == nil; time.Sleep(time.Second / 2) { //nolint:forbidigo // a slow reader
			err = r.Epoch(ctx, 0, 0, false)
		}
		failed <- err
	}()
	b.Cleanup(func() {
		cancel()
		if err := <-failed; status.Code(err) != codes.Canceled {
			b.Error(err)
		}
		r.Close()
	})
}

// startServer runs cacheserver local until the end of the benchmark.
func startServer(b *testing.B, program, metadata string) (url, flight string, pid int) {
	b.Helper()
	command := exec.CommandContext(b.Context(), program, "local", "--metadata", metadata, "--nodes", "2",
		"--listen", "127.0.0.1:0", "--http", "127.0.0.1:0", "--memory-limit", "256Mi", "--log-level", "error")
	out, err := command.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := command.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait() // it was killed
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	words := strings.Fields(line) // ready grpc://HOST:PORT http://HOST:PORT
	return words[2], words[1], command.Process.Pid
}

// cpu is the CPU time that a process has used.
func cpu(b *testing.B, pid int) time.Duration {
	b.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Fatal(err)
	}
	fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
	var ticks int64 // of utime and stime, of 10 ms
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}
