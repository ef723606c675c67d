// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/pflag"

	"github.com/kubeflow/datacache/internal/manage"
)

// config is what the command line says.
type config struct {
	caches      manage.CacheFlags
	namespaces  []string
	kubeconfig  string
	metrics     string
	metricsAuth bool
	probes      string
	webhookHost string
	webhookPort int
	certDir     string
	rotate      bool
	leaderElect bool
	qps         float32
	burst       int
	logFormat   string
	logLevel    string
}

func (c *config) register(flags *pflag.FlagSet, env func(string) string) {
	or := func(name, fallback string) string {
		if value := env(name); value != "" {
			return value
		}
		return fallback
	}
	c.caches.Register(flags, env, "datacache-system")
	flags.StringSliceVar(&c.namespaces, "namespaces", nil, "serve these namespaces alone, for a manager without rights in others (manifests/components/namespaced); empty: all")
	flags.StringVar(&c.kubeconfig, "kubeconfig", env("KUBECONFIG"), "file that says how to reach the API server; empty inside a cluster (env KUBECONFIG)")
	flags.StringVar(&c.metrics, "metrics", ":8443", "host:port for Prometheus metrics; 0 serves none")
	flags.BoolVar(&c.metricsAuth, "metrics-auth", true, "serve metrics by HTTPS to those alone whom the API server lets get /metrics; off: by HTTP to everybody")
	flags.StringVar(&c.probes, "probes", ":8081", "host:port for /healthz and /readyz; 0 serves none")
	flags.StringVar(&c.webhookHost, "webhook-host", "", "address that the webhook listens on; empty is all")
	flags.IntVar(&c.webhookPort, "webhook-port", 9443, "port that the webhook listens on")
	flags.StringVar(&c.certDir, "cert-dir", "/certs", "folder with the webhook's tls.crt and tls.key")
	flags.BoolVar(&c.rotate, "rotate-certs", true, "make and renew the webhook's certificate in the Secret datacache-webhook-cert; off where cert-manager does")
	flags.BoolVar(&c.leaderElect, "leader-elect", false, "run the controllers in one of several managers alone")
	flags.Float32Var(&c.qps, "qps", 200, "requests a second to the API server")
	flags.IntVar(&c.burst, "burst", 400, "requests to the API server in a burst")
	flags.StringVar(&c.logFormat, "log-format", or("LOG_FORMAT", "text"), "text or json (env LOG_FORMAT)")
	flags.StringVar(&c.logLevel, "log-level", or("LOG_LEVEL", "info"), "debug, info, warn or error (env LOG_LEVEL)")
}
