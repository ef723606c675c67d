// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/internal/wellknown"
)

func logsCommand(at *target) *cobra.Command {
	server, tail := "", int64(-1)
	var options corev1.PodLogOptions
	cmd := &cobra.Command{
		Use: "logs NAME", Short: "Print the log of a cache's head, of its data nodes, or of the step that waits for it",
		Long: `Prints the log of a server of the DataCache NAME or, with --server gate, of the step with which the TrainJob NAME waits
for its caches. With several pods, each line begins with the name of its pod.`,
		Args: one("cache"), ValidArgsFunction: at.caches,
	}
	cmd.Flags().StringVar(&server, "server", wellknown.RoleHead, "head, node (all data nodes), gate, or the name of a pod of the cache")
	cmd.Flags().BoolVarP(&options.Follow, "follow", "f", false, "go on until the pods end")
	cmd.Flags().BoolVarP(&options.Previous, "previous", "p", false, "of the container before its last restart")
	cmd.Flags().Int64Var(&tail, "tail", -1, "number of the last lines to begin with; -1: all")
	complete(cmd, "server", at.servers(wellknown.RoleHead, wellknown.RoleNode, gate))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if tail >= 0 {
			options.TailLines = &tail
		}
		c, err := at.reach()
		if err != nil {
			return err
		}
		pods, err := c.servers(cmd.Context(), client.ObjectKey{Namespace: c.namespace, Name: args[0]}, server)
		if err != nil {
			return err
		}
		return c.logs(cmd.Context(), pods, options, cmd.OutOrStdout())
	}
	return cmd
}

// logs writes the logs of the pods: one after the other or, if they are followed, line by line as they come.
func (c *cluster) logs(ctx context.Context, pods []corev1.Pod, options corev1.PodLogOptions, out io.Writer) error {
	group, ctx := errgroup.WithContext(ctx)
	if !options.Follow {
		group.SetLimit(1)
	}
	lines := &lineWriter{out: out}
	for i := range pods {
		group.Go(func() error {
			prefix := ""
			if len(pods) > 1 {
				prefix = pods[i].Name + "  "
			}
			return c.log(ctx, &pods[i], options, func(line string) error { return lines.write(prefix + line) })
		})
	}
	return group.Wait()
}

// log passes each line of a pod's log to write, with its newline.
func (c *cluster) log(ctx context.Context, pod *corev1.Pod, options corev1.PodLogOptions, write func(string) error) error {
	options.Container = pod.Labels[wellknown.LabelRole]
	if options.Container == "" {
		options.Container = wellknown.StepName
	}
	stream, err := c.core.Pods(pod.Namespace).GetLogs(pod.Name, &options).Stream(ctx)
	if err != nil {
		return fmt.Errorf("log of pod %s: %w", pod.Name, err)
	}
	defer func() { _ = stream.Close() }()
	reader := bufio.NewReader(stream)
	for {
		line, err := reader.ReadString('\n')
		if line != "" {
			if err := write(strings.TrimSuffix(line, "\n") + "\n"); err != nil {
				return err
			}
		}
		switch {
		case errors.Is(err, io.EOF), ctx.Err() != nil:
			return nil
		case err != nil:
			return fmt.Errorf("log of pod %s: %w", pod.Name, err)
		}
	}
}

// lineWriter writes lines of several goroutines, each whole.
type lineWriter struct {
	mu  sync.Mutex
	out io.Writer
}

func (w *lineWriter) write(line string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := io.WriteString(w.out, line)
	return err
}
