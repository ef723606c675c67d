// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeflow/datacache/cacheserver/local"
)

func localCommand(env environment) *cobra.Command {
	var (
		source      sourceFlags
		selection   selectionFlags
		serve       serveFlags
		data        dataFlags
		nodes       int
		comparisons int64
		loadTimeout time.Duration
	)
	cmd := &cobra.Command{
		Use:   "local",
		Short: "Run a head and data nodes in one process",
		Long: `local runs a whole cache in one process: the head listens at --listen, the data nodes on free ports beside
it. When the table is loaded it prints one line to standard output: ready grpc://HOST:PORT http://HOST:PORT`,
		Example: `  cacheserver local --metadata ./warehouse/db/events/metadata/00003-5a1c.metadata.json --nodes 2 --listen 127.0.0.1:50051`,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			src, err := selectedSource(&source, &selection, env)
			if err != nil {
				return err
			}
			p, err := serve.start(cmd.Context(), env, cmd.Name(), src.Store)
			if err != nil {
				return err
			}
			defer p.flush()
			own, err := data.open(cmd.Context(), p)
			if err != nil {
				return err
			}
			cache, err := local.New(cmd.Context(), local.Config{
				Flight: p.flight, HTTP: p.http, Nodes: nodes, Budget: own.budget, FilterMemory: own.filters, Store: src.Store, Source: src,
				TLS: serve.tls, Transport: p.transport, Grace: serve.grace, Log: p.log, Metrics: p.metrics, Tracer: p.tracer, Profiles: serve.profiles, Turns: own.turns,
				FilterComparisons: comparisons, LoadTimeout: loadTimeout,
			})
			if err != nil {
				return err
			}
			go follow(cmd.Context(), cache.Head(), p.log, p.announce)
			return cache.Start(cmd.Context())
		},
	}
	flags := cmd.Flags()
	source.register(flags, env)
	selection.register(flags, env)
	selection.complete(cmd, &source, env)
	serve.register(flags, env)
	data.register(flags, env)
	flags.IntVar(&nodes, "nodes", 1, "data nodes")
	registerComparisons(flags, &comparisons)
	flags.DurationVar(&loadTimeout, "load-timeout", 0, "fail a first load that store or catalog have kept from any progress for this long (default 1m)")
	return cmd
}
