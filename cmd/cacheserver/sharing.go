// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/spf13/pflag"

	"github.com/kubeflow/datacache/cacheserver/fair"
	"github.com/kubeflow/datacache/cacheserver/node"
	"github.com/kubeflow/datacache/cacheserver/reload"
	"github.com/kubeflow/datacache/cacheserver/rows"
)

// dataFlags configure what data nodes have for rows and clients.
type dataFlags struct {
	memory  memoryFlags
	sharing sharingFlags
}

func (f *dataFlags) register(flags *pflag.FlagSet, env environment) {
	f.memory.register(flags, env)
	f.sharing.register(flags, env)
}

// dataLimits are what data nodes have for rows and clients.
type dataLimits struct {
	budget  *rows.Budget
	filters int64 // bytes of budget that indexes of filters may take
	turns   *fair.Queue
}

// open returns what the flags describe, and exports the memory as metrics.
func (f *dataFlags) open(ctx context.Context, p *process) (own dataLimits, err error) {
	if own.budget, own.filters, err = f.memory.budget(); err != nil {
		return own, err
	}
	p.countMemory(own.budget)
	own.turns, err = f.sharing.turns(ctx, p.log)
	return own, err
}

// sharingFlags configure how data nodes are shared among jobs.
type sharingFlags struct{ file string }

// sharingPoll is how often the file is read.
const sharingPoll = 5 * time.Second

func (f *sharingFlags) register(flags *pflag.FlagSet, env environment) {
	flags.StringVar(&f.file, "sharing", env("SHARING_FILE"),
		`JSON file of the weights and limits of the jobs that read, such as {"weights": {"train": 3}, "maxJobs": 20, "maxStreamsPerJob": 64};`+"\n"+
			"changes of the file apply within seconds (default: equal weights, no limits; env SHARING_FILE)")
}

// turns returns the queue of streams that the flags describe. It follows the file until ctx ends.
func (f *sharingFlags) turns(ctx context.Context, log *slog.Logger) (*fair.Queue, error) {
	queue := fair.New(node.Turns())
	if f.file == "" {
		return queue, nil
	}
	file, err := reload.Open(f.file, fair.Parse)
	if err != nil {
		return nil, fmt.Errorf("--sharing: %w", err)
	}
	queue.Configure(file.Get())
	go file.Watch(ctx, sharingPoll, log, queue.Configure)
	return queue, nil
}
