// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/kubeflow/datacache/cacheserver/fair"
	"github.com/kubeflow/datacache/cacheserver/node/serve"
	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/spill"
	"github.com/kubeflow/datacache/internal/command"
	"github.com/kubeflow/datacache/internal/reload"
)

// dataFlags configure what data nodes have for rows and clients, and how jobs share it.
type dataFlags struct{ memory, filters, sharing, spillDir, spillLimit, puts, writer string }

// sharingPoll is how often the file is read.
const sharingPoll = 5 * time.Second

func (f *dataFlags) register(flags *pflag.FlagSet, env command.Env) {
	flags.StringVar(&f.memory, "memory-limit", env.Or("MEMORY_LIMIT", "90%"),
		"memory for the table, for loading it and for clients' streams, which a sixteenth of it, at most 256 MiB, is kept for: bytes, a quantity such as 12Gi or 500MB, or a share of the container's (or machine's) memory; with --spill-dir bytes are the limit of the whole process (env MEMORY_LIMIT)")
	flags.StringVar(&f.filters, "filter-memory", env.Or("FILTER_MEMORY", "5%"),
		"part of the memory limit for the indexes of filters that clients ask for, which take an eighth of a byte for each row: bytes, a quantity, or a share of the limit (env FILTER_MEMORY)")
	flags.StringVar(&f.spillDir, "spill-dir", env("SPILL_DIR"),
		"folder on a local disk for the rows, so that they may be larger than the memory and a restarted data node need not load them again; no other cache may use it (default: rows are in memory only; env SPILL_DIR)")
	flags.StringVar(&f.spillLimit, "spill-limit", env.Or("SPILL_LIMIT", "100%"),
		"how much of that disk the rows of a data node may take: bytes, a quantity such as 200Gi, or a share of the disk (env SPILL_LIMIT)")
	flags.StringVar(&f.puts, "put-limit", env.Or("PUT_LIMIT", "100%"),
		"part of the memory limit for datasets that clients put, with copies of other data nodes' and for the streams that put them: bytes, a quantity, or a share of the limit (docs/put.md; env PUT_LIMIT)")
	flags.StringVar(&f.writer, "put-limit-per-writer", env.Or("PUT_LIMIT_PER_WRITER", "100%"),
		"part of the memory limit for what one writer has put, as the access file names writers; all clients without a name count as one: bytes, a quantity, or a share of the limit (docs/put.md; env PUT_LIMIT_PER_WRITER)")
	flags.StringVar(&f.sharing, "sharing", env("SHARING_FILE"),
		`JSON file of the weights and limits of the jobs that read, such as {"weights": {"train": 3}, "maxJobs": 20, "maxStreamsPerJob": 64};`+"\n"+
			"changes of the file apply within seconds (default: equal weights, no limits; env SHARING_FILE)")
}

// wholeProcess is the resident memory of a process besides what is in the budget: 48 MiB of code, and as much for the Go heap.
const wholeProcess = 96 << 20

// leastLimit is the minimum of --memory-limit. With less, a data node has no memory for connections, and cannot even join its head.
const leastLimit = 256 << 10

// memoryLimit parses --memory-limit. With rows on disk a number of bytes is the limit of the whole process, as a share of its container always is: what
// the process itself takes only means that fewer rows are in memory.
func memoryLimit(text string, onDisk bool) (int64, error) {
	bytes, err := command.ParseMemory(text)
	if err == nil && onDisk && !strings.HasSuffix(text, "%") {
		bytes -= wholeProcess
		if bytes <= 0 {
			err = fmt.Errorf("%q: with --spill-dir it is the limit of the whole process, which takes %d MiB without rows: give it more", text, wholeProcess>>20)
		}
	}
	if err == nil && bytes < leastLimit {
		err = fmt.Errorf("%q: %d bytes for rows and clients: want at least %d more, and then as much as the rows take", text, bytes, leastLimit-bytes)
	}
	if err != nil {
		return 0, fmt.Errorf("--memory-limit: %w", err)
	}
	return bytes, nil
}

// budget returns the memory limit, the part of it for what clients put, and how much of it the indexes of filters may use.
func (f *dataFlags) budget() (budget, puts *offheap.Budget, filters int64, err error) {
	bytes, err := memoryLimit(f.memory, f.spillDir != "")
	if err != nil {
		return nil, nil, 0, err
	}
	if filters, err = share("filter-memory", f.filters, bytes); err != nil {
		return nil, nil, 0, err
	}
	most, err := share("put-limit", f.puts, bytes)
	if err != nil {
		return nil, nil, 0, err
	}
	writer, err := share("put-limit-per-writer", f.writer, bytes)
	if err != nil {
		return nil, nil, 0, err
	}
	budget = offheap.NewBudget(bytes).Keep(keptForClients(bytes))
	puts = budget
	if most < bytes {
		puts = budget.Part(most, "drop datasets, raise --put-limit (env PUT_LIMIT), or add data nodes")
	}
	if writer < most {
		puts.Each(writer)
	}
	return budget, puts, filters, nil
}

// share parses the value of a flag for a part of the memory limit.
func share(flag, text string, limit int64) (bytes int64, err error) {
	bytes, err = command.ParseShare(text, limit)
	if err == nil && bytes > limit {
		err = fmt.Errorf("%q: more than the memory limit, which is %d bytes", text, limit)
	}
	if err != nil {
		return 0, fmt.Errorf("--%s: %w", flag, err)
	}
	return bytes, nil
}

// keptForClients is how much of a memory limit no rows take.
func keptForClients(limit int64) int64 { return min(limit/16, 256<<20) }

// spill returns the folder for rows of a data node on disk; nil if there is none.
func (f *dataFlags) spill(index int) (*spill.Dir, error) {
	if f.spillDir == "" {
		return nil, nil //nolint:nilnil // no folder is no error
	}
	if err := os.MkdirAll(f.spillDir, 0o700); err != nil {
		return nil, fmt.Errorf("--spill-dir: %w", err)
	}
	var disk unix.Statfs_t
	if err := unix.Statfs(f.spillDir, &disk); err != nil {
		return nil, fmt.Errorf("--spill-dir: %s: %w", f.spillDir, err)
	}
	limit, err := command.ParseShare(f.spillLimit, int64(disk.Blocks)*int64(disk.Bsize)) //nolint:unconvert // 32 bits on macOS
	if err != nil {
		return nil, fmt.Errorf("--spill-limit: %w", err)
	}
	return spill.New(f.spillDir, index, limit), nil
}

// turns returns the queue of streams that the flags describe. It follows the file until ctx ends.
func (f *dataFlags) turns(ctx context.Context, log *slog.Logger) (*fair.Queue, error) {
	queue := fair.New(serve.Turns())
	if f.sharing == "" {
		return queue, nil
	}
	file, err := reload.Open(f.sharing, fair.Parse)
	if err != nil {
		return nil, fmt.Errorf("--sharing: %w", err)
	}
	queue.Configure(file.Get())
	go file.Watch(ctx, sharingPoll, log, queue.Configure)
	return queue, nil
}
