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
	"strings"
	"sync/atomic"
	"time"
	"unicode"

	"golang.org/x/net/netutil"
)

// noticePath takes what the controller of caches says, by POST: why there is no cache, or why its pods don't start. The controller has it in
// controller/notice.go.
const noticePath = "/notice"

const (
	maxNotice      = 2048 // bytes
	maxConnections = 8
	noticeTimeout  = 5 * time.Second
)

// notices keeps the last notice. Anybody who reaches the pod can send one: it is written into the log and decides nothing. It is safe for
// concurrent use.
type notices struct{ last atomic.Value }

// now is the last notice, "" if there is none.
func (n *notices) now() string {
	text, _ := n.last.Load().(string)
	return text
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
	n.last.Store(oneLine(string(text)))
	w.WriteHeader(http.StatusNoContent)
}

// oneLine makes of a text one line that a terminal shows as it is.
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

// serve takes notices until ctx ends, and closes the listener.
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
