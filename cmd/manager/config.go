// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"

	"github.com/kubeflow/datacache/controller"
	"github.com/kubeflow/datacache/internal/inject"
)

// config is what the command line says.
type config struct {
	kubeconfig  string
	namespace   string
	domain      string
	objectCache string
	image       string
	pullPolicy  string
	metrics     string
	probes      string
	webhookHost string
	webhookPort int
	certDir     string
	rotate      bool
	leaderElect bool
	noAffinity  bool
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
	flags.StringVar(&c.kubeconfig, "kubeconfig", env("KUBECONFIG"), "file that says how to reach the API server; empty inside a cluster (env KUBECONFIG)")
	flags.StringVar(&c.namespace, "namespace", or("POD_NAMESPACE", "datacache-system"), "the namespace this manager runs in (env POD_NAMESPACE)")
	flags.StringVar(&c.image, "cache-image", env("CACHE_IMAGE"), "image of the cache server, for heads, data nodes and the gate; required (env CACHE_IMAGE)")
	flags.StringVar(&c.pullPolicy, "cache-image-pull-policy", env("CACHE_IMAGE_PULL_POLICY"), "Always, IfNotPresent, Never; empty leaves it to the kubelet (env CACHE_IMAGE_PULL_POLICY)")
	flags.StringVar(&c.domain, "cluster-domain", "cluster.local", "end of the names of Services")
	flags.StringVar(&c.objectCache, "object-cache", env("OBJECT_CACHE"), "URL of the object cache for DataCaches that name a bucket of it (default: the one of manifests/object-cache; env OBJECT_CACHE)")
	flags.StringVar(&c.metrics, "metrics", ":8080", "host:port for Prometheus metrics; 0 serves none")
	flags.StringVar(&c.probes, "probes", ":8081", "host:port for /healthz and /readyz; 0 serves none")
	flags.StringVar(&c.webhookHost, "webhook-host", "", "address that the webhook listens on; empty is all")
	flags.IntVar(&c.webhookPort, "webhook-port", 9443, "port that the webhook listens on")
	flags.StringVar(&c.certDir, "cert-dir", "/certs", "folder with the webhook's tls.crt and tls.key")
	flags.BoolVar(&c.rotate, "rotate-certs", true, "make and renew the webhook's certificate in the Secret datacache-webhook-cert; off where cert-manager does")
	flags.BoolVar(&c.leaderElect, "leader-elect", false, "run the controllers in one of several managers alone")
	flags.BoolVar(&c.noAffinity, "no-zone-affinity", false, "don't make training pods prefer the zone of their cache")
	flags.Float32Var(&c.qps, "qps", 200, "requests a second to the API server")
	flags.IntVar(&c.burst, "burst", 400, "requests to the API server in a burst")
	flags.StringVar(&c.logFormat, "log-format", or("LOG_FORMAT", "text"), "text or json (env LOG_FORMAT)")
	flags.StringVar(&c.logLevel, "log-level", or("LOG_LEVEL", "info"), "debug, info, warn or error (env LOG_LEVEL)")
}

// check refuses what no flag's type can.
func (c *config) check() error {
	if c.image == "" {
		return errors.New("--cache-image (env CACHE_IMAGE) is empty: name the image of the cache server")
	}
	switch corev1.PullPolicy(c.pullPolicy) {
	case "", corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
		return nil
	}
	return fmt.Errorf("--cache-image-pull-policy: %q, want Always, IfNotPresent or Never", c.pullPolicy)
}

func (c *config) controllers() controller.Options {
	gate := inject.Gate{Image: c.image, ImagePullPolicy: corev1.PullPolicy(c.pullPolicy)}
	return controller.Options{Image: c.image, Gate: gate, Namespace: c.namespace, ClusterDomain: c.domain, ObjectCacheURL: c.objectCache}
}
