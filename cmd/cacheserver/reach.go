// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/spf13/cobra"
)

const (
	reachTimeout = 2 * time.Second // of an attempt
	reachPause   = time.Second     // between attempts
)

func reachCommand() *cobra.Command {
	listen, lasts := "", time.Duration(0)
	cmd := &cobra.Command{
		Use:   "reach [HOST:PORT...]",
		Short: "Connect to addresses, to see whether DNS and network lead there",
		Long: `reach connects to each address again and again and prints a line at first and whenever the result changes: the address,
and "ok" or what failed. kubectl datacache doctor runs it in pods.`,
		Example: `  cacheserver reach kubernetes.default.svc:443 10.0.0.7:8080
  cacheserver reach --listen :8080 --for 1m`,
		RunE: func(cmd *cobra.Command, addresses []string) error {
			if (listen == "") == (len(addresses) == 0) {
				return errors.New("--listen: either it or addresses to connect to")
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), lasts)
			defer cancel()
			if listen != "" {
				return admit(ctx, listen)
			}
			return reach(ctx, cmd.OutOrStdout(), addresses)
		},
	}
	cmd.Flags().StringVar(&listen, "listen", "", "address on which to accept connections, and close them, in place of connecting")
	cmd.Flags().DurationVar(&lasts, "for", 0, "how long to go on; each address is tried once at least")
	return cmd
}

// reach tries the addresses until the context ends, and each at least once.
func reach(ctx context.Context, out io.Writer, addresses []string) error {
	last := map[string]string{}
	for {
		for _, address := range addresses {
			is := "ok"
			connection, err := (&net.Dialer{Timeout: reachTimeout}).DialContext(context.WithoutCancel(ctx), "tcp", address)
			if err != nil {
				is = err.Error()
			} else {
				_ = connection.Close() // nothing was written
			}
			if last[address] == is {
				continue
			}
			last[address] = is
			if _, err := fmt.Fprintf(out, "%s %s\n", address, is); err != nil {
				return err
			}
		}
		select {
		case <-time.After(reachPause):
		case <-ctx.Done():
			return nil
		}
	}
}

// admit accepts connections until the context ends.
func admit(ctx context.Context, address string) error {
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("--listen: %w", err)
	}
	stop := context.AfterFunc(ctx, func() { _ = listener.Close() })
	defer stop()
	for {
		connection, err := listener.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return nil
		case err != nil:
			return fmt.Errorf("--listen: %w", err)
		}
		_ = connection.Close() // nothing was read
	}
}
