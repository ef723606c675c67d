// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

// measureFor is the duration of each measurement, which OBJECTCACHE_SPEED sets. Without it the test is skipped.
func measureFor(t *testing.T) time.Duration {
	t.Helper()
	text := os.Getenv("OBJECTCACHE_SPEED")
	if text == "" {
		t.Skip("OBJECTCACHE_SPEED=3s asks for it: it takes minutes of an idle machine")
	}
	duration, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return duration
}

// TestSpeed prints requests per CPU-second of the server and of nginx, which serves the same bytes from the same file system: with
// sendfile, no authorization, open_file_cache off as by default, and its dav module for PUT. It fails if a ratio is below its
// minimum. It must be run explicitly: OBJECTCACHE_SPEED=3s go test ./test/objectcache -run '^TestSpeed$' -v, where 3s is the duration
// of each measurement. Only the CPU time of the server's processes counts, so it matters little that the client uses the same cores.
func TestSpeed(t *testing.T) {
	duration := measureFor(t)
	cache, nginx := start(t, options{}), startNginx(t)
	ours := &target{name: "object-cache", address: strings.TrimPrefix(cache.url, "http://"), pids: []int{cache.server.PID()}, path: "/v1/objects/open/", header: "Authorization: Bearer " + token + "\r\n"}
	fmt.Println(machine(t))
	fmt.Printf("%-4s %6s %5s  %11s %11s  %14s %15s  %5s  %13s  %s\n", "", "", "conns", "ours req/s", "nginx req/s", "ours req/CPU-s", "nginx req/CPU-s", "ratio", "ours GB/CPU-s", "bar")
	for _, size := range []int{100 << 10, 10 << 20} {
		body := bytes.Repeat([]byte("0123456789abcdef"), size/16)
		for _, to := range []*target{ours, nginx} {
			to.exchange(t, "PUT", strconv.Itoa(size), body)
		}
		for _, method := range []string{"GET", "PUT"} {
			for _, connections := range []int{1, 32} {
				var pairs []pair
				for range 7 { // alternating, since a shared machine's speed changes from one second to the next
					pairs = append(pairs, pair{
						ours.measure(t, method, size, body, connections, duration),
						nginx.measure(t, method, size, body, connections, duration),
					})
				}
				m := median(pairs)
				fmt.Printf("%-4s %5dk %5d  %11.0f %11.0f  %14.0f %15.0f  %5.2f  %13.2f  %s\n", method, size>>10, connections,
					m.ours.perSecond, m.nginx.perSecond, m.ours.perCPU, m.nginx.perCPU, m.ratio(), m.ours.perCPU*float64(size)/1e9, verdict(t, method, size, connections, m.ratio()))
			}
		}
	}
}

// load is an object size and a number of connections.
type load struct{ size, connections int }

// bars are the minimum ratios for GET.
var bars = map[load]float64{{100 << 10, 1}: 0.3, {100 << 10, 32}: 0.3, {10 << 20, 1}: 0.8, {10 << 20, 32}: 0.8}

// verdict compares a ratio with its minimum.
func verdict(t *testing.T, method string, size, connections int, ratio float64) string {
	t.Helper()
	bar, ok := bars[load{size, connections}]
	if !ok || method != "GET" {
		return "none"
	}
	if ratio < bar {
		t.Errorf("%s of %d bytes: %.2f of nginx's requests a CPU-second, want %.2f", method, size, ratio, bar)
		return fmt.Sprintf("%.2f FAIL", bar)
	}
	return fmt.Sprintf("%.2f pass", bar)
}

// machine describes the machine, for the output.
func machine(t *testing.T) string {
	t.Helper()
	read := func(path string) string {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return strings.TrimSpace(string(text))
	}
	model := "CPU of unknown make"
	for line := range strings.Lines(read("/proc/cpuinfo")) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
			model = strings.TrimSpace(value)
			break
		}
	}
	return fmt.Sprintf("%d x %s, Linux %s, load %s, %s", runtime.NumCPU(), model, read("/proc/sys/kernel/osrelease"), read("/proc/loadavg"), runtime.Version())
}

// speed is the result of one measurement.
type speed struct{ perSecond, perCPU float64 }

// pair is two measurements made one after the other.
type pair struct{ ours, nginx speed }

// ratio is the ratio of our requests per CPU-second to nginx's.
func (p pair) ratio() float64 { return p.ours.perCPU / p.nginx.perCPU }

// median is the pair with the median ratio.
func median(pairs []pair) pair {
	slices.SortFunc(pairs, func(a, b pair) int { return cmp.Compare(a.ratio(), b.ratio()) })
	return pairs[len(pairs)/2]
}

// target is a server to measure.
type target struct {
	name, address, path, header string
	pids                        []int // IDs of the server's processes, or of their parents
}

// measure sends requests for the given duration.
func (to *target) measure(t *testing.T, method string, size int, body []byte, connections int, duration time.Duration) speed {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	var requests atomic.Int64
	var group sync.WaitGroup
	before, began := to.cpu(t), time.Now()
	for i := range connections {
		group.Go(func() {
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", to.address)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			reader := bufio.NewReaderSize(conn, 256<<10)
			key := strconv.Itoa(size)
			if method == "PUT" {
				key += "-" + strconv.Itoa(i)
			}
			for ctx.Err() == nil {
				if err := to.ask(conn, reader, method, key, body); err != nil {
					t.Errorf("%s: %v", to.name, err)
					return
				}
				requests.Add(1)
			}
		})
	}
	group.Wait()
	took, cpu := time.Since(began), to.cpu(t)-before
	return speed{float64(requests.Load()) / took.Seconds(), float64(requests.Load()) / cpu.Seconds()}
}

// exchange sends one request.
func (to *target) exchange(t *testing.T, method, key string, body []byte) {
	t.Helper()
	conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", to.address)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := to.ask(conn, bufio.NewReader(conn), method, key, body); err != nil {
		t.Fatal(err)
	}
}

func (to *target) ask(conn io.Writer, reader *bufio.Reader, method, key string, body []byte) error {
	head := fmt.Sprintf("%s %s%s HTTP/1.1\r\nHost: x\r\n%s", method, to.path, key, to.header)
	if method == "PUT" {
		head += fmt.Sprintf("Content-Length: %d\r\n", len(body))
	}
	if _, err := io.WriteString(conn, head+"\r\n"); err != nil {
		return err
	}
	if method == "PUT" {
		if _, err := conn.Write(body); err != nil {
			return err
		}
	}
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	n, err := io.Copy(io.Discard, response.Body)
	if err != nil || response.StatusCode >= 300 || method == "GET" && n != int64(len(body)) {
		return fmt.Errorf("%s %s: %s, %d bytes, %w", method, key, response.Status, n, err)
	}
	return nil
}

// cpu is the CPU time of the server's process and its children.
func (to *target) cpu(t *testing.T) time.Duration {
	t.Helper()
	var pids []string
	for _, pid := range to.pids {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
		if err != nil {
			t.Fatal(err)
		}
		pids = append(append(pids, strconv.Itoa(pid)), strings.Fields(string(children))...)
	}
	var ticks int64
	for _, pid := range pids {
		stat, err := os.ReadFile("/proc/" + pid + "/stat")
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(stat), ") ")
		fields := strings.Fields(rest) // the fields of proc(5) from the third one on
		for _, f := range fields[11:13] {
			n, err := strconv.ParseInt(f, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			ticks += n
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond // USER_HZ is 100 on Linux
}

// startNginx starts nginx, configured for speed.
func startNginx(t *testing.T) *target {
	t.Helper()
	program := need(t, "nginx", "install nginx-light")
	dir, address := t.TempDir(), proctest.FreeAddress(t)
	for _, sub := range []string{"root", "tmp"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o777); err != nil { //nolint:gosec // a folder of this benchmark
			t.Fatal(err)
		}
	}
	config := write(t, filepath.Join(dir, "nginx.conf"), fmt.Sprintf(`
daemon off; pid %[1]s/pid; error_log %[1]s/error.log; user root; worker_processes auto; master_process on;
events { worker_connections 1024; }
http {
  access_log off; sendfile on; tcp_nopush on; tcp_nodelay on; keepalive_requests 1000000000; keepalive_timeout 600;
  open_file_cache off; client_body_temp_path %[1]s/tmp; client_max_body_size 0; default_type application/octet-stream;
  server { listen %[2]s; root %[1]s/root; location / { dav_methods PUT; } }
}`, dir, address))
	nginx := proctest.Start(t, "nginx", os.Environ(), program, "-c", config, "-e", filepath.Join(dir, "error.log"))
	deadline.Eventually(t, func() error {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", address)
		if err != nil {
			return err
		}
		return conn.Close()
	})
	return &target{name: "nginx", address: address, pids: []int{nginx.PID()}, path: "/"}
}
