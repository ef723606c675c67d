// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/kubeflow/datacache/cacheserver/local"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/wait"
	"github.com/kubeflow/datacache/internal/command"
)

func localCommand(env command.Env) *cobra.Command {
	var (
		table tableFlags
		serve serveFlags
		data  dataFlags
		cfg   local.Config
		held  string
		first func() (*protocol.First, error)
	)
	cmd := &cobra.Command{
		Use:   "local",
		Short: "Run a head and data nodes in one process",
		Long: `local runs a whole cache in one process: the head listens at --listen, the data nodes on free ports beside
it. When the table is loaded it prints one line to standard output: ready grpc://HOST:PORT http://HOST:PORT

It ends with code 3 if the table can't be loaded, and with code 1 if an argument is wrong.`,
		Example: `  cacheserver local --metadata ./warehouse/db/events/metadata/00003-5a1c.metadata.json --nodes 2 --listen 127.0.0.1:50051
  cacheserver local --files ./train --columns tokens,label --filter "lang = 'en'"`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if cfg.FirstEpoch, err = first(); err != nil {
				return err
			}
			src, err := table.open(env, nil)
			if err != nil {
				return err
			}
			if serve.Budget, cfg.PutBudget, cfg.FilterMemory, err = data.budget(); err != nil {
				return err
			}
			cfg.Spill = data.spill
			flush, err := serve.start(cmd.Context(), env, cmd.Name(), src)
			if err != nil {
				return err
			}
			defer flush()
			if cfg.Turns, err = data.turns(cmd.Context(), serve.Log); err != nil {
				return err
			}
			cfg.Config, cfg.Puts, cfg.PutKeep = serve.Config, table.puts, table.putKeep
			cache, err := local.New(cmd.Context(), cfg)
			if err != nil {
				return err
			}
			return runLocal(cmd.Context(), cache, &serve, held)
		},
	}
	flags := cmd.Flags()
	table.register(cmd, env)
	table.registerPuts(flags, env)
	serve.register(flags, env)
	data.register(flags, env)
	flags.IntVar(&cfg.Nodes, "nodes", 1, "data nodes")
	first = registerFirst(flags, env)
	registerComparisons(flags, &cfg.FilterComparisons)
	flags.DurationVar(&cfg.LoadTimeout, "load-timeout", 0, "fail a first load that store or catalog have kept from any progress for this long (default 1m)")
	flags.StringVar(&held, "while-held", "", "serve while another process holds a lock (flock) on this file, to which the addresses are written at the start")
	return cmd
}

// runLocal serves until ctx ends, the cache fails or, if held is not empty, no other process holds a lock on that file.
func runLocal(ctx context.Context, cache *local.Cache, serve *serveFlags, held string) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	if held != "" {
		users, err := openHolders(held, serve.addresses())
		if err != nil {
			return err
		}
		go func() {
			if err := users.wait(); err != nil {
				serve.Log.Error("nothing is served: the file of --while-held can't be locked", "file", held, "reason", err)
			}
			stop(nil)
		}()
	}
	go follow(ctx, cache.Head(), serve.Log, serve.announce, func(reason string) { stop(&wait.FailedError{Reason: reason}) })
	err := cache.Start(ctx)
	if failed := new(wait.FailedError); errors.As(context.Cause(ctx), &failed) {
		return failed
	}
	return err
}
