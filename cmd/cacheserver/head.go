// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"runtime/debug"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/kubeflow/datacache/cacheserver/assign"
	"github.com/kubeflow/datacache/cacheserver/head"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/internal/command"
)

func headCommand(env command.Env) *cobra.Command {
	var (
		table tableFlags
		serve serveFlags
		pin   string
		cfg   head.Config
		first func() (*protocol.First, error)
	)
	cmd := &cobra.Command{
		Use:   "head",
		Short: "Plan a table, deal it to data nodes, tell clients where their rows are",
		Example: `  export CACHE_SECRET=$(cat /etc/datacache/secret)       # the same on every machine
  cacheserver head --metadata s3://bucket/db/events/metadata/00003-5a1c.metadata.json --nodes 2
  cacheserver node --head head-host:50051 --index 0     # on one machine
  cacheserver node --head head-host:50051 --index 1     # on another`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			pinned, err := snapshotID("snapshot-pin", pin)
			if err != nil {
				return err
			}
			src, err := table.open(env, pinned)
			if err != nil {
				return err
			}
			serve.Budget = offheap.NewBudget(assign.HeadClients).Keep(assign.HeadClients / 4)
			flush, err := serve.start(cmd.Context(), env, cmd.Name(), src)
			if err != nil {
				return err
			}
			defer flush()
			if cfg.FirstEpoch, err = first(); err != nil {
				return err
			}
			cfg.Config, cfg.Puts, cfg.PutKeep = serve.Config, table.puts, table.putKeep
			if limit := debug.SetMemoryLimit(-1); limit < math.MaxInt64 { // set by the environment variable GOMEMLIMIT
				cfg.Memory = limit
			}
			h, err := head.New(cfg)
			if err != nil {
				return err
			}
			go follow(cmd.Context(), h, serve.Log, serve.announce, func(reason string) { serve.Log.Error("failed", "reason", reason) })
			return h.Start(cmd.Context())
		},
	}
	flags := cmd.Flags()
	table.register(cmd, env)
	table.registerPuts(flags, env)
	serve.registerJoined(flags, env)
	flags.StringVar(&pin, "snapshot-pin", env("SNAPSHOT_PIN"), "the snapshot that an earlier head of this cache planned: plan it and no other, while the cache stays one of what was asked for (env SNAPSHOT_PIN)")
	flags.IntVar(&cfg.Nodes, "nodes", groupNodes(env), "data nodes to wait for (default in a LeaderWorkerSet: LWS_GROUP_SIZE - 1)")
	flags.DurationVar(&cfg.JoinTimeout, "join-timeout", 0, "fail if not every data node has joined by then (default 10m)")
	flags.DurationVar(&cfg.LoadTimeout, "load-timeout", 0, "fail a first load that store or catalog have kept from any progress for this long (default 15m)")
	flags.DurationVar(&cfg.NodeTimeout, "node-timeout", 0, "count a silent data node as lost after this (default 10s)")
	first = registerFirst(flags, env)
	registerComparisons(flags, &cfg.FilterComparisons)
	flags.DurationVar(&cfg.TicketTTL, "ticket-ttl", 0, "how long a client may wait before it starts a stream with a ticket (default 1h)")
	return cmd
}

// groupNodes is the number of data nodes in a LeaderWorkerSet whose leader is the head; 0 without a LeaderWorkerSet.
func groupNodes(env command.Env) int {
	size, err := strconv.Atoi(env("LWS_GROUP_SIZE"))
	if err != nil {
		return 0
	}
	return size - 1
}
