// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/spf13/pflag"

	"github.com/kubeflow/datacache/internal/buildinfo"
	"github.com/kubeflow/datacache/internal/command"
	"github.com/kubeflow/datacache/internal/reload"
	"github.com/kubeflow/datacache/objectcache/router"
	"github.com/kubeflow/datacache/objectcache/xds"
)

// xdsFlags configure the port at which Envoys and gRPC clients get their configuration.
type xdsFlags struct{ listen, envoy, envoyCert, cert, key, clientCA string }

func (f *xdsFlags) register(flags *pflag.FlagSet, env command.Env) {
	flags.StringVar(&f.listen, "xds", env("XDS_LISTEN"), "host:port that serves Envoy's configuration over xDS; empty: none (env XDS_LISTEN)")
	flags.StringVar(&f.envoy, "xds-envoy", env.Or("XDS_ENVOY", "0.0.0.0:10000"), "IP:port where Envoys accept clients, the same at all object caches (env XDS_ENVOY)")
	flags.StringVar(&f.envoyCert, "xds-envoy-cert", env("XDS_ENVOY_CERT"),
		"with TLS for objects: file in Envoys' file system, an SDS resource \"objects\" with the certificate for their clients; empty: no TLS there (env XDS_ENVOY_CERT)")
	flags.StringVar(&f.cert, "xds-tls-cert", env("XDS_TLS_CERT"), "PEM file of the certificate for --xds; read again when it changes; empty: no TLS (env XDS_TLS_CERT)")
	flags.StringVar(&f.key, "xds-tls-key", env("XDS_TLS_KEY"), "PEM file of its key (env XDS_TLS_KEY)")
	flags.StringVar(&f.clientCA, "xds-tls-client-ca", env("XDS_TLS_CLIENT_CA"), "PEM file of the authorities of xDS clients' certificates; read again when it changes; empty: clients need none (env XDS_TLS_CLIENT_CA)")
}

// check returns an error if the flags are inconsistent, also with those of TLS on the port for objects.
func (f *xdsFlags) check(objects tlsFlags) error {
	if f.listen == "" {
		if f.cert != "" || f.key != "" || f.clientCA != "" || f.envoyCert != "" {
			return errors.New("--xds: missing, --xds-envoy-cert, --xds-tls-cert, --xds-tls-key and --xds-tls-client-ca want it")
		}
		return nil
	}
	switch {
	case !objects.enabled() && f.envoyCert != "":
		return errors.New("--tls-cert: missing, --xds-envoy-cert wants it, or a CA (--tls-authority)")
	case f.cert == "" && (f.key != "" || f.clientCA != ""):
		return errors.New("--xds-tls-cert: missing, --xds-tls-key and --xds-tls-client-ca want it")
	case f.cert != "" && f.key == "":
		return errors.New("--xds-tls-key: missing, --xds-tls-cert wants it")
	}
	_, err := f.listener()
	return err
}

func (f *xdsFlags) listener() (netip.AddrPort, error) {
	on, err := netip.ParseAddrPort(f.envoy)
	if err != nil || on.Port() == 0 {
		return on, fmt.Errorf("--xds-envoy: %q, want IP:PORT such as 0.0.0.0:10000 or [::]:10000", f.envoy)
	}
	return on, nil
}

// control is an xDS server; nil without --xds.
type control struct{ *xds.Server }

// control starts the xDS server, which has no members yet; nil without its flags. secured is TLS on the port for objects, or nil.
func (f *serveFlags) control(p *process, secured *security) (*control, error) {
	if f.xds.listen == "" {
		return nil, nil //nolint:nilnil // running without xDS is valid
	}
	cfg, known := xds.Config{Log: p.log}, ""
	if secured != nil {
		known = secured.authorities()
		cfg.Objects = &xds.ObjectTLS{Authorities: secured.authorities, ServerName: secured.ServerName, EnvoyCertificate: f.xds.envoyCert}
	}
	var err error
	if cfg.Listener, err = f.xds.listener(); err != nil {
		return nil, err
	}
	if cfg.TLS, err = f.xds.tls(p); err != nil {
		return nil, err
	}
	on, err := p.listen("--xds", f.xds.listen)
	if err != nil {
		return nil, err
	}
	started := &control{xds.New(cfg)}
	if secured != nil {
		secured.watch(p, known, func(string) { started.Refresh() })
	}
	p.Go(func() error { return started.Serve(p.ctx, on) })
	return started, nil
}

// tls returns the xDS server's TLS configuration, nil without TLS.
func (f *xdsFlags) tls(p *process) (*tls.Config, error) {
	if f.cert == "" {
		return nil, nil //nolint:nilnil // running without TLS is valid
	}
	pair, err := reload.OpenPair(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("--xds-tls-cert: %w", err)
	}
	var clients *reload.File[authorities]
	if f.clientCA != "" {
		if clients, err = reload.Open(f.clientCA, parseAuthorities); err != nil {
			return nil, fmt.Errorf("--xds-tls-client-ca: %w", err)
		}
	}
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c := &tls.Config{MinVersion: tls.VersionTLS12, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{*pair.Fresh(lookEvery, p.log)}}
			if clients != nil {
				c.ClientCAs, c.ClientAuth = clients.Fresh(lookEvery, p.log).pool, tls.RequireAndVerifyClientCert
			}
			return c, nil
		},
	}, nil
}

// setMembers publishes the members; c may be nil.
func (c *control) setMembers(members []router.Member) {
	if c != nil {
		c.SetMembers(members)
	}
}

// collectors returns the metrics of the program and of the xDS server; c may be nil.
func (c *control) collectors() []prometheus.Collector {
	version := buildinfo.Collector("object-cache", command.Version(version))
	if c == nil {
		return []prometheus.Collector{version}
	}
	return []prometheus.Collector{version, c.Collector()}
}
