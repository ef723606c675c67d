// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package manage is the code around controller-runtime that our two managers share: logs, the API server's address, probes, and
// waiting for the webhook's certificate.
package manage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"

	"github.com/go-logr/logr"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// LogTo directs the logs of the program, controller-runtime and client-go to out. The format is text or json; the level debug, info,
// warn or error.
func LogTo(out io.Writer, format, level string) error {
	options := &slog.HandlerOptions{}
	var least slog.Level
	if err := least.UnmarshalText([]byte(level)); err != nil {
		return fmt.Errorf("--log-level: %q, want debug, info, warn or error", level)
	}
	options.Level = least
	var handler slog.Handler
	switch format {
	case "text":
		handler = slog.NewTextHandler(out, options)
	case "json":
		handler = slog.NewJSONHandler(out, options)
	default:
		return fmt.Errorf("--log-format: %q, want text or json", format)
	}
	slog.SetDefault(slog.New(handler))
	ctrl.SetLogger(logr.FromSlogHandler(handler))
	klog.SetLogger(logr.FromSlogHandler(handler))
	return nil
}

// Reach returns the client configuration for the API server: from the named kubeconfig, or from the pod's environment if none is
// named.
func Reach(kubeconfig string) (*rest.Config, error) {
	reach, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	return reach, nil
}

// Probe adds the probes: alive at once, ready when the certificate exists and the webhook is listening; ready at once without a
// certificate (nil).
func Probe(mgr ctrl.Manager, certificate <-chan struct{}) error {
	if err := mgr.AddHealthzCheck("healthz", healthz.Ping); err != nil {
		return fmt.Errorf("set up /healthz: %w", err)
	}
	err := mgr.AddReadyzCheck("readyz", func(r *http.Request) error {
		if certificate == nil {
			return nil
		}
		select {
		case <-certificate:
			// GetWebhookServer starts the server, which fails without a certificate.
			return mgr.GetWebhookServer().StartedChecker()(r)
		default:
			return errors.New("the webhook has no certificate yet")
		}
	})
	if err != nil {
		return fmt.Errorf("set up /readyz: %w", err)
	}
	return nil
}

// Once runs setup on every replica of the manager, whether it leads or not, as soon as the certificate exists. If setup fails, the
// manager ends with its error.
func Once(mgr ctrl.Manager, certificate <-chan struct{}, setup func() error) error {
	return mgr.Add(everyReplica(func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-certificate:
			return setup()
		}
	}))
}

// everyReplica is a runnable that does not wait for leader election.
type everyReplica func(ctx context.Context) error

var _ manager.LeaderElectionRunnable = everyReplica(nil)

// Start runs it.
func (e everyReplica) Start(ctx context.Context) error { return e(ctx) }

// NeedLeaderElection returns false.
func (e everyReplica) NeedLeaderElection() bool { return false }
