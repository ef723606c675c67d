// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package wait

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"golang.org/x/net/netutil"
)

// noticePath receives the controller's messages by POST: why there is no cache, or why its pods don't start. The sender is
// controller/notice.go.
const noticePath = "/notice"

const (
	maxNotice      = 32 << 10 // bytes
	maxConnections = 8
	noticeTimeout  = 5 * time.Second
)

// notices stores the last notice. Anyone who can connect to the pod can send one, so it is only written to the log and has no other
// effect. It is safe for concurrent use.
type notices struct {
	caches []string     // the names of all caches
	last   atomic.Value // a string
}

// of returns what the last notice says about a cache, "" if nothing: all of it for the only cache, whose name is ""; otherwise the line
// that begins with the cache's name, or the lines that begin with no cache's name.
func (n *notices) of(cache string) string {
	text, _ := n.last.Load().(string)
	if cache == "" {
		return oneLine(text)
	}
	var about []string
	for line := range strings.SplitSeq(text, "\n") {
		name, rest, found := strings.Cut(line, ": ")
		if found && name == cache {
			return oneLine(rest)
		}
		if !slices.Contains(n.caches, name) {
			about = append(about, line)
		}
	}
	return oneLine(strings.Join(about, " "))
}

func (n *notices) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodPost || r.URL.Path != noticePath {
		http.NotFound(w, r)
		return
	}
	text, err := io.ReadAll(io.LimitReader(r.Body, maxNotice))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	n.last.Store(string(text))
	w.WriteHeader(http.StatusNoContent)
}

// oneLine replaces control characters so that the text is one line that is safe to print on a terminal.
func oneLine(text string) string {
	text = strings.Map(func(r rune) rune {
		if unicode.IsSpace(r) {
			return ' '
		}
		if !unicode.IsPrint(r) || r == unicode.ReplacementChar {
			return '?'
		}
		return r
	}, text)
	return strings.TrimSpace(text)
}

// serve receives notices until ctx ends, then closes the listener.
func (n *notices) serve(ctx context.Context, listener net.Listener) error {
	server := &http.Server{
		Handler: n, ReadTimeout: noticeTimeout, WriteTimeout: noticeTimeout, MaxHeaderBytes: 8 << 10,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	err := server.Serve(netutil.LimitListener(listener, maxConnections))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("take the controller's notices: %w", err)
}
