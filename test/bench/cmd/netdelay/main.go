// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command netdelay simulates a network with latency, for measurements on one machine: two network namespaces, joined by a pair of TUN
// devices between which it forwards packets after a delay. It does not need netem. The namespaces have no names, so they disappear
// when it has ended and no process uses them any more. It needs root and /dev/net/tun.
//
// It prints "ready NAMESPACE NAMESPACE", two paths for nsenter --net; their addresses are 10.99.0.1 and 10.99.0.2. Each line on stdin
// is a delay in one direction and the fraction of packets to lose, as "2.5ms 0.001"; it echoes the line when it takes effect. It ends
// at the end of stdin.
package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"time"
)

// addresses are the addresses of the two ends.
var addresses = [2][4]byte{{10, 99, 0, 1}, {10, 99, 0, 2}}

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "netdelay:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	var ends [2]end
	for i := range ends {
		var err error
		if ends[i], err = newEnd(addresses[i]); err != nil {
			return err
		}
	}
	failed := make(chan error, 2)
	links := [2]*link{newLink(1), newLink(2)}
	for i, l := range links {
		go func() { failed <- l.carry(ends[i].device, ends[1-i].device) }()
	}
	fmt.Fprintf(out, "ready %s %s\n", ends[0].namespace, ends[1].namespace)

	lines := make(chan string)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(in); s.Scan(); {
			lines <- s.Text()
		}
	}()
	for {
		select {
		case err := <-failed:
			return err
		case line, more := <-lines:
			if !more {
				return nil
			}
			delay, loss, err := parse(line)
			if err != nil {
				return err
			}
			for _, l := range links {
				l.set(delay, loss)
			}
			fmt.Fprintln(out, line)
		}
	}
}

// parse parses a delay and a fraction of lost packets.
func parse(line string) (delay time.Duration, loss float64, err error) {
	var text string
	if _, err := fmt.Sscanf(line, "%s %g", &text, &loss); err != nil {
		return 0, 0, fmt.Errorf("line %q: want a delay and a share, as 2.5ms 0.001: %w", line, err)
	}
	if delay, err = time.ParseDuration(text); err != nil || delay < 0 || loss < 0 || loss >= 1 {
		return 0, 0, fmt.Errorf("line %q: want a delay of 0 or more and a share from 0 to below 1", line)
	}
	return delay, loss, nil
}
