// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/internal/overview"
	"github.com/kubeflow/datacache/internal/webpage"
	"github.com/kubeflow/datacache/internal/wellknown"
)

func uiCommand(at *target) *cobra.Command {
	port, server, all := 0, "", false
	cmd := &cobra.Command{
		Use: "ui [NAME]", Short: "Serve the page of a cache, or of all caches, on this machine until Ctrl-C",
		Long: `With a name it forwards a port of this machine to the page of the cache's head through the API server, which needs the right to create
pods/portforward; the role edit has it. Without a name it serves a page of the namespace's caches, or with -A of all, as you may list
them. It prints the page's address.`,
		Args: cobra.MaximumNArgs(1), ValidArgsFunction: at.caches,
	}
	cmd.Flags().IntVar(&port, "port", 0, "port of this machine; 0 takes a free one")
	cmd.Flags().StringVar(&server, "server", "", "head (default), or the name of a data node's pod, which has a page too")
	cmd.Flags().BoolVarP(&all, "all-namespaces", "A", false, "the caches of all namespaces")
	complete(cmd, "server", at.servers(wellknown.RoleHead))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) == 1 && all:
			return errors.New("--all-namespaces: leave out the cache's name, or name its --namespace instead")
		case len(args) == 0 && server != "":
			return errors.New("--server: name the cache whose server it is")
		}
		c, err := at.reach()
		if err != nil {
			return err
		}
		if len(args) == 0 {
			return c.serveCaches(cmd, c.scope(all), port)
		}
		return c.showServer(cmd, args[0], cmp.Or(server, wellknown.RoleHead), port)
	}
	return cmd
}

// showServer forwards a port to the page of a cache's server until the command's context ends.
func (c *cluster) showServer(cmd *cobra.Command, name, server string, port int) error {
	pods, err := c.servers(cmd.Context(), client.ObjectKey{Namespace: c.namespace, Name: name}, server)
	if err != nil {
		return err
	}
	f, err := c.forward(&pods[0], port)
	if err != nil {
		return err
	}
	defer f.stop()
	printPage(cmd.OutOrStdout(), pods[0].Name, f.address)
	select {
	case <-cmd.Context().Done():
		return nil
	case err := <-f.ended:
		return fmt.Errorf("pod %s: %w", pods[0].Name, err)
	}
}

// serveCaches serves the page of the caches that the user may list, of the namespace or of all, until the command's context ends. The API
// server is asked for each page, with the user's own credentials of whatever kind. The address has a random part: without it, other users
// of the machine and pages of other sites could read what this user may.
func (c *cluster) serveCaches(cmd *cobra.Command, namespace string, port int) error {
	ctx := cmd.Context()
	if _, err := c.list(ctx, namespace); err != nil { // says at once what is wrong
		return err
	}
	folder := "/" + rand.Text() + "/"
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+folder+"{$}", c.writeCaches)
	webpage.Register(mux, folder)
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", fmt.Sprintf("127.0.0.1:%d", port))
	if err != nil {
		return fmt.Errorf("--port: %w", err)
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: answerIn}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	query := strings.TrimSuffix(overview.Filter{Namespace: namespace}.Query(), "?")
	fmt.Fprintf(cmd.OutOrStdout(), "The page of caches is at http://%s%s%s until Ctrl-C.\n", listener.Addr(), folder, query)
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

func (c *cluster) writeCaches(w http.ResponseWriter, r *http.Request) {
	filter, err := overview.ParseFilter(r.URL.Query())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	caches, err := c.list(r.Context(), filter.Namespace)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	overview.Write(w, filter, "", caches.Items)
}

func printPage(out io.Writer, pod, address string) {
	fmt.Fprintf(out, "The page of pod %s is at http://%s/ until Ctrl-C.\n", pod, address)
}
