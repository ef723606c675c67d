// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"net"

	"github.com/spf13/pflag"

	"github.com/kubeflow/datacache/internal/command"
	"github.com/kubeflow/datacache/internal/opshttp"
	"github.com/kubeflow/datacache/internal/reload"
	"github.com/kubeflow/datacache/objectcache/mirror"
	"github.com/kubeflow/datacache/objectcache/mirror/hosts"
)

// mirrorFlags configure mirrors of registries and hubs.
type mirrorFlags struct{ file, listen, hosts string }

func (f *mirrorFlags) register(flags *pflag.FlagSet, env command.Env) {
	flags.StringVar(&f.file, "mirrors", env("OBJECT_CACHE_MIRRORS"), "YAML or JSON file of what to mirror; looked at again while serving; empty: nothing (env OBJECT_CACHE_MIRRORS)")
	flags.StringVar(&f.listen, "mirror-listen", env.Or("MIRROR_LISTEN", ":8001"), "host:port for clients of mirrors (env MIRROR_LISTEN)")
	flags.StringVar(&f.hosts, "write-hosts", env("WRITE_HOSTS"),
		"folder of containerd's registry hosts, such as /etc/containerd/certs.d, in which _default/hosts.toml names the mirror while it serves; empty: none (env WRITE_HOSTS)")
}

// check returns an error if the flags are inconsistent.
func (f *mirrorFlags) check() error {
	if f.file == "" && f.hosts != "" {
		return errors.New("--write-hosts: without --mirrors there is no mirror: add it, or leave --write-hosts out")
	}
	return nil
}

// start serves mirrors until p ends. The caller calls opened when the object cache serves; it tells containerd about the mirror. secured is nil without
// TLS.
func (f *mirrorFlags) start(p *process, secured *security, o mirror.Options) (opened func() error, err error) {
	if f.file == "" {
		return func() error { return nil }, nil
	}
	config, err := reload.Open(f.file, mirror.Parse)
	if err != nil {
		return nil, fmt.Errorf("--mirrors: %w", err)
	}
	o.Config = config.Get
	m := mirror.New(o)
	if err := m.Check(); err != nil {
		return nil, fmt.Errorf("--mirrors: %s: %w", f.file, err)
	}
	on, err := p.listen("--mirror-listen", f.listen)
	if err != nil {
		return nil, err
	}
	p.Go(func() error { return m.Serve(p.ctx, on) })
	watch(p, config, func(mirror.Config) {
		if err := m.Check(); err != nil {
			p.log.Error("nothing is kept of what is mirrored there", "file", f.file, "error", err)
		}
	})
	return func() error {
		address := opshttp.Reachable(on.Addr())
		scheme := "http"
		if secured != nil {
			scheme = "https"
		}
		fmt.Printf("mirrors %s://%s\n", scheme, address)
		if f.hosts == "" {
			return nil
		}
		return f.tell(p, scheme, address, secured)
	}, nil
}

// tell writes the mirror's address and authorities where containerd reads them, and removes them when p ends.
func (f *mirrorFlags) tell(p *process, scheme, address string, secured *security) error {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return err
	}
	write := func(authorities string) (remove func() error, err error) {
		remove, err = hosts.Write(f.hosts, scheme+"://"+net.JoinHostPort("127.0.0.1", port), authorities)
		if err != nil {
			return nil, fmt.Errorf("--write-hosts: %w", err)
		}
		return remove, nil
	}
	authorities := ""
	if secured != nil {
		authorities = secured.authorities()
		secured.watch(p, authorities, func(now string) {
			if _, err := write(now); err != nil {
				p.log.Error("containerd still has the mirror's earlier authorities", "error", err)
			}
		})
	}
	remove, err := write(authorities)
	if err != nil {
		return err
	}
	p.Go(func() error {
		<-p.ctx.Done()
		return remove()
	})
	return nil
}
