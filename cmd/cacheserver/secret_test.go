// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/kubeflow/datacache/cacheserver/role"
)

func TestListeningBeyondLoopbackNeedsASecret(t *testing.T) {
	for _, test := range []struct {
		address string
		flags   serveFlags
		refused bool
		logs    string
	}{
		{address: "127.0.0.1:0"},
		{address: "[::1]:0"},
		{address: "127.9.9.9:0"},
		{address: ":0", refused: true},
		{address: "0.0.0.0:0", refused: true},
		{address: ":0", flags: serveFlags{Config: role.Config{Secret: "s"}}},
		{address: ":0", flags: serveFlags{insecure: true}, logs: "INSECURE"},
		{address: "127.0.0.1:0", flags: serveFlags{insecure: true}},
	} {
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", test.address)
		if err != nil {
			if strings.HasPrefix(test.address, "[") {
				t.Log("no IPv6 on this machine:", err)
				continue
			}
			t.Fatal(err)
		}
		var log bytes.Buffer
		test.flags.Flight, test.flags.Log, test.flags.joined = listener, slog.New(slog.NewTextHandler(&log, nil)), true
		err = test.flags.checkSecret()
		_ = listener.Close()
		if (err != nil) != test.refused || err != nil && !strings.Contains(err.Error(), "CACHE_SECRET") {
			t.Errorf("%s with %+v: %v", test.address, test.flags, err)
		}
		if got := log.String(); (test.logs == "") != (got == "") || !strings.Contains(got, test.logs) {
			t.Errorf("%s with %+v: the log says %q, want %q", test.address, test.flags, got, test.logs)
		}
	}
}

func TestHeadAndNodeAskForASecret(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"head", "--metadata", "/none", "--nodes", "1", "--listen", "0.0.0.0:0", "--http", ""},
		{"node", "--head", "127.0.0.1:1", "--listen", "0.0.0.0:0", "--http", ""},
	} {
		cmd := root(func(string) string { return "" })
		cmd.SetArgs(args)
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "--insecure") {
			t.Errorf("%s: %v", args[0], err)
		}
	}
}
