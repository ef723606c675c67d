// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/google/go-containerregistry/pkg/registry"
)

// registryCommand serves a registry without access control, in memory, until the process is told to end.
func registryCommand(ctx context.Context, flags *flag.FlagSet, args []string) error {
	listen := flags.String("listen", "127.0.0.1:0", "the address to serve on")
	ready := flags.String("ready", "", "a file that gets the address, HOST:PORT, once it is served")
	if _, err := parse(flags, args); err != nil {
		return err
	}
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", *listen)
	if err != nil {
		return err
	}
	server := &http.Server{
		Handler:           registry.New(registry.WithReferrersSupport(true), registry.Logger(log.New(io.Discard, "", 0))),
		ReadHeaderTimeout: time.Minute,
	}
	if *ready != "" {
		part := *ready + ".part"
		if err := os.WriteFile(part, []byte(listener.Addr().String()), 0o644); err != nil {
			return err
		}
		if err := os.Rename(part, *ready); err != nil {
			return err
		}
	}
	fmt.Fprintln(os.Stdout, listener.Addr())
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
