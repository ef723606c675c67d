// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"
	"net/url"
	"time"

	"github.com/spf13/cobra"

	"github.com/kubeflow/datacache/cacheserver/wait"
)

// The exit codes of initializer for failures that a retry does not fix; the Job's podFailurePolicy (internal/inject) refers to them.
const (
	exitFailed  = 3
	exitTimeout = 4
)

func initializerCommand(env environment) *cobra.Command {
	var address, status, timeout, every, notices string
	cmd := &cobra.Command{
		Use:   "initializer",
		Short: "Wait until a cache is ready and print its progress (a TrainJob's dataset-initializer step)",
		Long: fmt.Sprintf(`initializer asks the head of a cache how far it is, prints a line a while, and ends when every row is in memory.
It needs the head's HTTP address alone, no rights in Kubernetes and none to the table. What keeps a cache's pods from running the
controller sends to the pod, at --notices; it is printed as well.

It exits with 0 when the cache is ready, %d when the cache failed, %d when it was not ready in time, 1 when it was called wrongly.`, exitFailed, exitTimeout),
		Example: `  cacheserver initializer --head reviews-cache-service:8080 --timeout 2h`,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			source, err := statusURL(status, env("TRAIN_JOB_NAME"), address)
			if err != nil {
				return err
			}
			cfg := wait.Config{URL: source, Out: cmd.OutOrStdout()}
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
	flags.StringVar(&address, "head", env.or("CACHE_HEAD", jobsHead(env)),
		"host:port of the head's HTTP port (env CACHE_HEAD; default <TRAIN_JOB_NAME>-cache-service:8080)")
	flags.StringVar(&status, "status", env("CACHE_STATUS"),
		"URL that tells the state of a cache without a head, instead of --head; the job's name is added to it (env CACHE_STATUS)")
	flags.StringVar(&timeout, "timeout", env.or("READY_TIMEOUT", "1h"), "give up after this long (env READY_TIMEOUT)")
	flags.StringVar(&every, "every", env.or("PROGRESS_INTERVAL", "10s"), "print a line at least this often while the cache loads (env PROGRESS_INTERVAL)")
	flags.StringVar(&notices, "notices", env("NOTICES"), "host:port that takes the controller's notices by HTTP; empty: none (env NOTICES)")
	return cmd
}

// statusURL is the URL to ask: status, with the TrainJob's name as a query, or that of the head at address.
func statusURL(status, job, address string) (string, error) {
	if status != "" {
		parsed, err := url.Parse(status)
		if err != nil || parsed.Host == "" {
			return "", fmt.Errorf("--status: %q, want a URL such as http://datacache-status.datacache-system.svc/status/team-a/files", status)
		}
		if job != "" {
			parsed.RawQuery = url.Values{"job": {job}}.Encode()
		}
		return parsed.String(), nil
	}
	if address == "" {
		return "", errors.New("no cache named: give --head host:port of the head's HTTP port, or set TRAIN_JOB_NAME")
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return "", fmt.Errorf("--head: %w, want host:port", err)
	}
	return "http://" + address + "/status", nil
}

// positive parses a duration from a flag or its environment variable.
func positive(flag, text string) (time.Duration, error) {
	d, err := time.ParseDuration(text)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("--%s: %q, want a time such as 90s, 30m or 2h", flag, text)
	}
	return d, nil
}

// jobsHead is the Service that the controller makes for a TrainJob's cache.
func jobsHead(env environment) string {
	job := env("TRAIN_JOB_NAME")
	if job == "" {
		return ""
	}
	return job + "-cache-service:8080"
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
