// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeflow/datacache/cacheserver/node"
	"github.com/kubeflow/datacache/internal/command"
)

func nodeCommand(env command.Env) *cobra.Command {
	var (
		source sourceFlags
		serve  serveFlags
		data   dataFlags
		cfg    node.Config
	)
	cmd := &cobra.Command{
		Use:   "node",
		Short: "Hold a part of a table in memory and stream it",
		Long: `node joins a head, loads the splits that the head gives it and streams them to clients.

The head says which snapshot, columns and rows; the table flags are needed only for what the head does not
pass on: a REST catalog that hands out credentials, and --property.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cfg.Head == "" {
				return errors.New("--head: missing, want the head's host:port")
			}
			src, err := source.open(env)
			if err != nil {
				return err
			}
			if serve.Budget, cfg.PutBudget, cfg.FilterMemory, err = data.budget(); err != nil {
				return err
			}
			if cfg.Spill, err = data.spill(cfg.Index); err != nil {
				return err
			}
			flush, err := serve.start(cmd.Context(), env, cmd.Name(), src)
			if err != nil {
				return err
			}
			defer flush()
			if cfg.Advertise, err = advertised(cfg.Advertise, cfg.Head, serve.Flight.Addr(), env); err != nil {
				return err
			}
			if cfg.Turns, err = data.turns(cmd.Context(), serve.Log); err != nil {
				return err
			}
			cfg.Config, cfg.JoinAfter = serve.Config, joinDelay(env)
			n, err := node.New(cfg)
			if err != nil {
				return err
			}
			cfg.Log.Info("started", "flight", cfg.Advertise, "head", cfg.Head, "index", cfg.Index, "memory-limit", cfg.Budget.Limit())
			return n.Start(cmd.Context())
		},
	}
	flags := cmd.Flags()
	source.register(flags, env)
	serve.registerJoined(flags, env)
	data.register(flags, env)
	flags.StringVar(&cfg.Head, "head", leaderAddress(env), "host:port of the head (default in a LeaderWorkerSet: LWS_LEADER_ADDRESS, port 50051)")
	flags.IntVar(&cfg.Index, "index", workerIndex(env), "this node's place, from 0 (default in a LeaderWorkerSet: LWS_WORKER_INDEX - 1)")
	flags.StringVar(&cfg.Advertise, "advertise", env("ADVERTISE"), "host:port at which clients reach this node (default: its name in the LeaderWorkerSet, or the address towards the head; env ADVERTISE)")
	flags.StringVar(&cfg.Machine, "machine", env("NODE_NAME"), "name of the machine that this node runs on, which the head's messages show (env NODE_NAME)")
	return cmd
}

// joinDelay is how long a data node waits before it resolves the head's name. The pods of a LeaderWorkerSet start together, and the
// head's name gets its address about a second later; an earlier query makes the cluster's DNS cache the negative answer for 5 s or
// more.
func joinDelay(env command.Env) time.Duration {
	if env("LWS_LEADER_ADDRESS") == "" {
		return 0
	}
	return 1500 * time.Millisecond
}

func leaderAddress(env command.Env) string {
	if leader := env("LWS_LEADER_ADDRESS"); leader != "" {
		return net.JoinHostPort(leader, "50051")
	}
	return ""
}

func workerIndex(env command.Env) int {
	index, err := strconv.Atoi(env("LWS_WORKER_INDEX"))
	if err != nil {
		return 0
	}
	return index - 1
}

// advertised is the address that clients get for this node. In a LeaderWorkerSet it is the worker's host name in the leader's domain;
// otherwise it is the local address of a connection to the head.
func advertised(given, headAddr string, listen net.Addr, env command.Env) (string, error) {
	if given != "" {
		return given, nil
	}
	host, port, err := net.SplitHostPort(listen.String())
	if err != nil {
		return "", fmt.Errorf("--listen: %w", err)
	}
	if ip := net.ParseIP(host); ip != nil && !ip.IsUnspecified() {
		return listen.String(), nil
	}
	if _, domain, ok := strings.Cut(env("LWS_LEADER_ADDRESS"), "."); ok {
		name, err := os.Hostname()
		return net.JoinHostPort(name+"."+domain, port), err
	}
	conn, err := net.Dial("udp", headAddr) // sends nothing, only selects the local address
	if err != nil {
		return "", fmt.Errorf("--advertise: missing, and no address towards the head %s is known: %w", headAddr, err)
	}
	defer func() { _ = conn.Close() }()
	host, _, err = net.SplitHostPort(conn.LocalAddr().String())
	return net.JoinHostPort(host, port), err
}
