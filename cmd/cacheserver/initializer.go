// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeflow/datacache/cacheserver/wait"
	"github.com/kubeflow/datacache/internal/command"
	"github.com/kubeflow/datacache/internal/reference"
)

// The exit codes of initializer for failures that a retry does not fix; the Job's podFailurePolicy (internal/inject) refers to them.
const (
	exitFailed  = 3
	exitTimeout = 4
)

// headPort is the HTTP port of a head's Service.
const headPort = ":8080"

func initializerCommand(env command.Env) *cobra.Command {
	var address, status, timeout, every, notices, gate string
	cmd := &cobra.Command{
		Use:   "initializer",
		Short: "Wait until caches are ready and print their progress (a TrainJob's dataset-initializer step)",
		Long: fmt.Sprintf(`initializer asks the head of a cache how far it is, prints a line a while, and ends when every row is in memory.
It needs the head's HTTP address alone, no rights in Kubernetes and none to the table. What keeps a cache's pods from running the
controller sends to the pod, at --notices; it is printed as well. Of several caches, it waits for all at once, and the lines of each begin
with its name.

It exits with 0 when all caches are ready, %d when a cache failed, %d when one was not ready in time, 1 when it was called wrongly.`, exitFailed, exitTimeout),
		Example: `  cacheserver initializer --head reviews-cache-service:8080 --timeout 2h
  cacheserver initializer --head web=web-cache-service:8080,code=code-cache-service:8080`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			heads, err := headsOf(status, env("POD_UID"), address)
			if err != nil {
				return err
			}
			setDatasets(heads, env)
			cfg := wait.Config{Heads: heads, Out: cmd.OutOrStdout()}
			if gate != "ready" && gate != "counted" {
				return fmt.Errorf(`--gate: %q, want "ready" or "counted"`, gate)
			}
			cfg.Counted = gate == "counted"
			if cfg.Timeout, err = positive("timeout", timeout); err != nil {
				return err
			}
			if cfg.Every, err = positive("every", every); err != nil {
				return err
			}
			if notices != "" {
				cfg.Notices, err = (&net.ListenConfig{}).Listen(cmd.Context(), "tcp", notices)
				if err != nil { // the wait works without it
					fmt.Fprintf(cmd.OutOrStdout(), "nothing is heard of the controller, as --notices can't be had: %v\n", err)
				}
			}
			return wait.UntilReady(cmd.Context(), cfg)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&address, "head", env.Or("CACHE_HEAD", jobsHead(env)),
		"host:port of the head's HTTP port, or NAME=host:port of each of several, separated by commas (env CACHE_HEAD; default: the caches of "+
			"the TrainJob TRAIN_JOB_NAME, whose storageUri is STORAGE_URI)")
	flags.StringVar(&status, "status", env("CACHE_STATUS"),
		"URL that tells the state of a cache without a head, instead of --head; the pod's UID (env POD_UID) is added to it (env CACHE_STATUS)")
	flags.StringVar(&timeout, "timeout", env.Or("READY_TIMEOUT", "1h"), "give up after this long (env READY_TIMEOUT)")
	flags.StringVar(&gate, "gate", env.Or("GATE", "ready"),
		"ready: until all rows are loaded; counted: until they can be read, which may be before they are loaded (env GATE)")
	flags.StringVar(&every, "every", env.Or("PROGRESS_INTERVAL", "10s"), "print a line at least this often while the cache loads (env PROGRESS_INTERVAL)")
	flags.StringVar(&notices, "notices", env("NOTICES"), "host:port that takes the controller's notices by HTTP; empty: none (env NOTICES)")
	return cmd
}

// headsOf returns what to wait for: status, with the UID of this pod as a query, or the heads at addresses.
func headsOf(status, pod, addresses string) ([]wait.Head, error) {
	if status != "" {
		parsed, err := url.Parse(status)
		if err != nil || parsed.Host == "" {
			return nil, fmt.Errorf("--status: %q, want a URL such as http://datacache-status.datacache-system.svc/status/team-a/files", status)
		}
		if pod != "" {
			parsed.RawQuery = url.Values{"pod": {pod}}.Encode()
		}
		return []wait.Head{{URL: parsed.String()}}, nil
	}
	if addresses == "" {
		return nil, errors.New("no cache named: give --head host:port of the head's HTTP port, or set TRAIN_JOB_NAME")
	}
	all := strings.Split(addresses, ",")
	heads := make([]wait.Head, len(all))
	for i, address := range all {
		name, rest, named := strings.Cut(address, "=")
		if named {
			address = rest
		}
		if len(all) > 1 && (!named || name == "" || slices.ContainsFunc(heads[:i], func(h wait.Head) bool { return h.Name == name })) {
			return nil, fmt.Errorf("--head: %q of %q, want NAME=host:port with a name of its own for each of several", all[i], addresses)
		}
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, fmt.Errorf("--head: %w, want host:port", err)
		}
		heads[i] = wait.Head{URL: "http://" + address + "/status"}
		if named {
			heads[i].Name = name
		}
	}
	return heads, nil
}

// setDatasets sets the dataset to wait for in each cache: those that the storageUri names, or the one that DERIVE has made from a table.
func setDatasets(heads []wait.Head, env command.Env) {
	names := reference.Names(env("STORAGE_URI"))
	for i, name := range names {
		if i < len(heads) {
			heads[i].Dataset = reference.Dataset(name)
		}
	}
	if names == nil && env("CACHE_STATUS") == "" { // CACHE_STATUS is set for caches of files, which have no datasets
		heads[0].Dataset = reference.Derived(env(reference.DeriveVariable))
	}
}

// positive parses a duration from a flag or its environment variable.
func positive(flag, text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("--%s: %q, want a time such as 90s, 30m or 2h", flag, text)
	}
	return d, nil
}

// jobsHead is the value of --head for a TrainJob: the Services that the controller makes for its caches.
func jobsHead(env command.Env) string {
	job := env("TRAIN_JOB_NAME")
	if job == "" {
		return ""
	}
	names := reference.Names(env("STORAGE_URI"))
	if len(names) < 2 {
		return reference.Service(job) + headPort
	}
	heads := make([]string, len(names))
	for i, name := range names {
		heads[i] = name + "=" + reference.NamedService(job, name) + headPort
	}
	return strings.Join(heads, ",")
}

// exitCode maps a command's error to an exit code.
func exitCode(err error) int {
	var failed *wait.FailedError
	var late *wait.TimeoutError
	switch {
	case err == nil:
		return 0
	case errors.As(err, &failed):
		return exitFailed
	case errors.As(err, &late):
		return exitTimeout
	}
	return 1
}
