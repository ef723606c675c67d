// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"archive/tar"
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	smallObjects   = 1000
	smallSize      = 10 << 10
	batchBar       = 10.0 // minimum ratio of objects per CPU-second
	batchMeasures  = 5
	batchesAtATime = 4
)

// TestBatchSpeed prints how many objects of 10 KiB the server serves per CPU-second, requested one by one and 1,000 at a time, and
// checks that the ratio reaches a minimum. OBJECTCACHE_SPEED is the duration of each measurement, as for TestSpeed.
func TestBatchSpeed(t *testing.T) {
	duration := measureFor(t)
	p := start(t, options{})
	to := &target{name: "object-cache", address: strings.TrimPrefix(p.url, "http://"), pids: []int{p.server.PID()}, path: "/v1/objects/open/", header: "Authorization: Bearer " + token + "\r\n"}
	body := bytes.Repeat([]byte("0123456789abcdef"), smallSize/16)
	var keys []string
	for i := range smallObjects {
		key := fmt.Sprintf("small/%d", i)
		keys = append(keys, key)
		to.exchange(t, "PUT", key, body)
	}
	list := strings.Join(keys, "\n")
	single := func(conn net.Conn, reader *bufio.Reader, i int) (int, error) {
		return 1, to.ask(conn, reader, "GET", keys[i%len(keys)], body)
	}
	together := func(conn net.Conn, reader *bufio.Reader, _ int) (int, error) { return to.askBatch(conn, reader, list) }
	type round struct{ single, batch float64 }
	var rounds []round
	for range batchMeasures {
		rounds = append(rounds, round{to.objectsPerCPU(t, duration, single), to.objectsPerCPU(t, duration, together)})
	}
	slices.SortFunc(rounds, func(a, b round) int { return cmp.Compare(a.batch/a.single, b.batch/b.single) })
	m := rounds[len(rounds)/2]
	fmt.Printf("GET %dk objects per CPU-s: %.0f one by one, %.0f of %d a request, ratio %.1f, bar %.1f\n", smallSize>>10, m.single, m.batch, smallObjects, m.batch/m.single, batchBar)
	if m.batch/m.single < batchBar {
		t.Errorf("a batch gives %.1f times the objects per CPU-second of single GETs, want %.1f", m.batch/m.single, batchBar)
	}
}

// objectsPerCPU sends requests on several connections for a while and returns objects per CPU-second of the server.
func (to *target) objectsPerCPU(t *testing.T, duration time.Duration, ask func(net.Conn, *bufio.Reader, int) (int, error)) float64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), duration)
	defer cancel()
	var objects atomic.Int64
	var group sync.WaitGroup
	before := to.cpu(t)
	for range batchesAtATime {
		group.Go(func() {
			conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", to.address)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			reader := bufio.NewReaderSize(conn, 256<<10)
			for i := 0; ctx.Err() == nil; i++ {
				n, err := ask(conn, reader, i)
				if err != nil {
					t.Error(err)
					return
				}
				objects.Add(int64(n))
			}
		})
	}
	group.Wait()
	return float64(objects.Load()) / (to.cpu(t) - before).Seconds()
}

// askBatch requests all keys of a list and counts the objects received.
func (to *target) askBatch(conn io.Writer, reader *bufio.Reader, list string) (objects int, err error) {
	head := fmt.Sprintf("POST %s?batch HTTP/1.1\r\nHost: x\r\n%sContent-Length: %d\r\n\r\n", strings.TrimSuffix(to.path, "/"), to.header, len(list))
	if _, err := io.WriteString(conn, head+list); err != nil {
		return 0, err
	}
	response, err := http.ReadResponse(reader, nil)
	if err != nil {
		return 0, err
	}
	defer response.Body.Close()
	archive := tar.NewReader(response.Body)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			_, err = io.Copy(io.Discard, response.Body)
			if err == nil && objects != smallObjects {
				err = fmt.Errorf("%d objects came, want %d", objects, smallObjects)
			}
			return objects, err
		}
		if err != nil {
			return 0, err
		}
		if n, err := io.Copy(io.Discard, archive); err != nil || n != smallSize {
			return 0, fmt.Errorf("%s has %d bytes, %w", header.Name, n, err)
		}
		objects++
	}
}
