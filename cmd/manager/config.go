// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/pflag"

	"github.com/kubeflow/datacache/internal/manage"
)

// config is the command line of the manager of caches.
type config struct {
	serving
	caches     manage.CacheFlags
	namespaces []string
	qps        float32
	burst      int
}

func (c *config) register(flags *pflag.FlagSet, env func(string) string) {
	c.caches.Register(flags, env, "datacache-system")
	flags.StringSliceVar(&c.namespaces, "namespaces", nil, "serve these namespaces alone, for a manager without rights in others (manifests/components/namespaced); empty: all")
	flags.Float32Var(&c.qps, "qps", 200, "requests a second to the API server")
	flags.IntVar(&c.burst, "burst", 400, "requests to the API server in a burst")
	c.serving.register(flags, env, cachesParts)
}

// serving is the configuration that all managers share: the API server, listening addresses, logging.
type serving struct {
	kubeconfig  string
	metrics     string
	metricsAuth bool
	probes      string
	webhookHost string
	webhookPort int
	certDir     string
	rotate      bool
	leaderElect bool
	logFormat   string
	logLevel    string
}

func (s *serving) register(flags *pflag.FlagSet, env func(string) string, p parts) {
	or := func(name, fallback string) string {
		if value := env(name); value != "" {
			return value
		}
		return fallback
	}
	flags.StringVar(&s.kubeconfig, "kubeconfig", env("KUBECONFIG"), "file that says how to reach the API server; empty inside a cluster (env KUBECONFIG)")
	flags.StringVar(&s.metrics, "metrics", ":8443", "host:port for Prometheus metrics; 0 serves none")
	flags.BoolVar(&s.metricsAuth, "metrics-auth", true, "serve metrics by HTTPS to those alone whom the API server lets get /metrics; off: by HTTP to everybody")
	flags.StringVar(&s.probes, "probes", ":8081", "host:port for /healthz and /readyz; 0 serves none")
	flags.StringVar(&s.webhookHost, "webhook-host", "", "address that the webhook listens on; empty is all")
	flags.IntVar(&s.webhookPort, "webhook-port", 9443, "port that the webhook listens on")
	flags.StringVar(&s.certDir, "cert-dir", "/certs", "folder with the webhook's tls.crt and tls.key")
	flags.BoolVar(&s.rotate, "rotate-certs", true, fmt.Sprintf("make and renew the webhook's certificate in the Secret %s; off where cert-manager does", p.certificate))
	flags.BoolVar(&s.leaderElect, "leader-elect", false, "run the controllers in one of several managers alone")
	flags.StringVar(&s.logFormat, "log-format", or("LOG_FORMAT", "text"), "text or json (env LOG_FORMAT)")
	flags.StringVar(&s.logLevel, "log-level", or("LOG_LEVEL", "info"), "debug, info, warn or error (env LOG_LEVEL)")
}
