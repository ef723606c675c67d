// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package manage holds what our two managers do alike around controller-runtime: logs, the API server's address, probes, and waiting for
// the webhook's certificate.
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

// LogTo sends what the program, controller-runtime and client-go log to one place. The format is text or json; the level debug, info,
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

// Reach is how the API server is reached: by the kubeconfig that is named, or as a pod does where none is.
func Reach(kubeconfig string) (*rest.Config, error) {
	reach, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	return reach, nil
}

// Probe answers the kubelet: alive at once, ready once the certificate is there and the webhook listens; at once without a certificate (nil).
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
			// Asking for the server starts it, and it can't start without a certificate.
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

// Once runs setup in each of several managers, the leader and the others, as soon as the certificate is there. The manager ends with the
// error that setup ends with.
func Once(mgr ctrl.Manager, certificate <-chan struct{}, setup func() error) error {
	return mgr.Add(everywhere(func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-certificate:
			return setup()
		}
	}))
}

// everywhere is a runnable that waits for no leadership.
type everywhere func(ctx context.Context) error

var _ manager.LeaderElectionRunnable = everywhere(nil)

// Start runs it.
func (e everywhere) Start(ctx context.Context) error { return e(ctx) }

// NeedLeaderElection says that it needs none.
func (e everywhere) NeedLeaderElection() bool { return false }
