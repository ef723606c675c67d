// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/spf13/pflag"

	"github.com/kubeflow/datacache/internal/authority"
	"github.com/kubeflow/datacache/internal/command"
	"github.com/kubeflow/datacache/internal/reload"
	"github.com/kubeflow/datacache/objectcache/kube"
	"github.com/kubeflow/datacache/objectcache/serve"
)

// tlsFlags configure TLS on the ports for objects and for mirrors.
type tlsFlags struct {
	cert, key, ca, name string
	authority, secret   string
	names               []string
	plain               bool
}

func (f *tlsFlags) register(flags *pflag.FlagSet, env command.Env) {
	flags.StringVar(&f.authority, "tls-authority", env("TLS_AUTHORITY"),
		"PEM file of the certificate and the private key of a CA of these object caches alone, from which each makes its certificate in memory; read again when it changes; empty: no TLS (env TLS_AUTHORITY)")
	flags.StringVar(&f.secret, "tls-authority-secret", env("TLS_AUTHORITY_SECRET"),
		"in place of --tls-authority: name of a Secret in --namespace with such a CA, which the first object cache makes; its certificate is ca.crt of the ConfigMap of the same name (env TLS_AUTHORITY_SECRET)")
	flags.StringSliceVar(&f.names, "tls-names", strings.FieldsFunc(env("TLS_NAMES"), func(r rune) bool { return r == ',' }),
		"with a CA: host names and addresses of the certificate, besides datacache, loopback's and the host's (default: the names of the Service; env TLS_NAMES)")
	flags.BoolVar(&f.plain, "plain-text", env("PLAIN_TEXT") != "false",
		"with a CA: answer requests in plain text too, on the same ports; false: refuse them (env PLAIN_TEXT)")
	flags.StringVar(&f.cert, "tls-cert", env("TLS_CERT"), "in place of a CA: PEM file of the certificate for objects; read again when it changes; plain text is then refused (env TLS_CERT)")
	flags.StringVar(&f.key, "tls-key", env("TLS_KEY"), "PEM file of its key (env TLS_KEY)")
	flags.StringVar(&f.ca, "tls-ca", env("TLS_CA"), "PEM file of the authorities that other object caches' certificates are of; read again when it changes (env TLS_CA)")
	flags.StringVar(&f.name, "tls-name", env("TLS_NAME"), "DNS name that other object caches' certificates have (default: SERVICE.NAMESPACE.svc; env TLS_NAME)")
}

// check returns an error if the flags are inconsistent.
func (f *tlsFlags) check() error {
	given := 0
	for _, value := range []string{f.authority, f.secret, f.cert} {
		if value != "" {
			given++
		}
	}
	switch {
	case given > 1:
		return errors.New("--tls-authority, --tls-authority-secret and --tls-cert: want one of them")
	case given == 0 && !f.plain:
		return errors.New("--plain-text: false, without TLS nothing would be answered: add --tls-authority or --tls-authority-secret")
	}
	if f.cert == "" {
		if f.key != "" || f.ca != "" || f.name != "" {
			return errors.New("--tls-cert: missing, --tls-key, --tls-ca and --tls-name want it")
		}
		return nil
	}
	for flag, value := range map[string]string{"--tls-key": f.key, "--tls-ca": f.ca, "--tls-name": f.name} {
		if value == "" {
			return fmt.Errorf("%s: missing, --tls-cert wants it", flag)
		}
	}
	return nil
}

// complete sets the defaults that depend on the name of the Service.
func (f *tlsFlags) complete(service, namespace string) {
	short := service + "." + namespace
	if f.cert != "" && f.name == "" {
		f.name = short + ".svc"
	}
	if len(f.names) == 0 {
		f.names = []string{service, short, short + ".svc", short + ".svc.cluster.local"}
	}
}

// enabled reports whether there is TLS.
func (f *tlsFlags) enabled() bool { return f.cert != "" || f.authority != "" || f.secret != "" }

// scheme is the scheme of URLs.
func (f *tlsFlags) scheme() string {
	if f.enabled() {
		return "https"
	}
	return "http"
}

// security is TLS on the ports for objects and for mirrors.
type security struct {
	serve.TLS
	authorities func() string // certificates, PEM, of the authorities that sign the server's certificate
	ready       func() error  // returns why there is no certificate yet; nil if there is one
}

// load returns TLS as the flags configure it; nil if they don't.
func (f *tlsFlags) load(p *process, cluster *kube.Client) (*security, error) {
	switch {
	case f.cert != "":
		return f.byFiles(p.log)
	case f.authority != "":
		ca, err := reload.Open(f.authority, authority.Parse)
		if err != nil {
			return nil, fmt.Errorf("--tls-authority: %w", err)
		}
		return f.byAuthority(func() (*authority.Authority, error) { return ca.Fresh(lookEvery, p.log), nil }), nil
	case f.secret != "":
		return f.byAuthority(keepAuthority(p, cluster, f.secret)), nil
	}
	return nil, nil //nolint:nilnil // running without TLS is valid
}

// keepAuthority returns the current authority of a Secret, or why there is none.
func keepAuthority(p *process, cluster *kube.Client, secret string) func() (*authority.Authority, error) {
	var current atomic.Pointer[authority.Authority]
	var failed atomic.Pointer[error]
	p.Go(func() error {
		cluster.KeepAuthority(p.ctx, secret, func(ca *authority.Authority) { current.Store(ca) }, func(err error) {
			failed.Store(&err)
			p.log.Error("can't keep the authority of the certificates", "error", err)
		})
		return nil
	})
	return func() (*authority.Authority, error) {
		if ca := current.Load(); ca != nil {
			return ca, nil
		}
		if err := failed.Load(); err != nil {
			return nil, *err
		}
		return nil, errors.New("the Secret " + secret + " is not read yet")
	}
}

// byAuthority is TLS with certificates of an authority.
func (f *tlsFlags) byAuthority(current func() (*authority.Authority, error)) *security {
	names := authority.Names(f.names)
	return &security{
		TLS: serve.TLS{
			ServerName: authority.ServerName, Plain: f.plain,
			Certificate: func() (*tls.Certificate, error) {
				ca, err := current()
				if err != nil {
					return nil, err
				}
				return ca.Server(names, time.Now())
			},
			Roots: func() (*x509.CertPool, error) {
				ca, err := current()
				if err != nil {
					return nil, err
				}
				return ca.Pool(), nil
			},
		},
		authorities: func() string {
			if ca, err := current(); err == nil {
				return ca.PEM()
			}
			return ""
		},
		ready: func() error {
			_, err := current()
			return err
		},
	}
}

// byFiles is TLS with a certificate from a file, which others have issued.
func (f *tlsFlags) byFiles(log *slog.Logger) (*security, error) {
	pair, err := reload.OpenPair(f.cert, f.key)
	if err != nil {
		return nil, fmt.Errorf("--tls-cert: %w", err)
	}
	roots, err := reload.Open(f.ca, parseAuthorities)
	if err != nil {
		return nil, fmt.Errorf("--tls-ca: %w", err)
	}
	return &security{
		TLS: serve.TLS{
			Certificate: func() (*tls.Certificate, error) { return pair.Fresh(lookEvery, log), nil },
			Roots:       func() (*x509.CertPool, error) { return roots.Fresh(lookEvery, log).pool, nil }, ServerName: f.name,
		},
		authorities: func() string { return roots.Fresh(lookEvery, log).pem },
		ready:       func() error { return nil },
	}, nil
}

// config is the configuration of the server; nil without TLS.
func (s *security) config() *serve.TLS {
	if s == nil {
		return nil
	}
	return &s.TLS
}

// watch calls changed with the authorities whenever they are others than before; known are those that the caller has.
func (s *security) watch(p *process, known string, changed func(authorities string)) {
	p.Go(func() error {
		ticker := time.NewTicker(lookEvery)
		defer ticker.Stop()
		for {
			select {
			case <-p.ctx.Done():
				return nil
			case <-ticker.C:
			}
			if now := s.authorities(); now != known {
				known = now
				changed(now)
			}
		}
	})
}

// await waits until there is a certificate; wait is called with the reason why there is none. It returns early when p ends, or without TLS.
func (s *security) await(p *process, wait func(reason string)) {
	for s != nil && p.ctx.Err() == nil {
		err := s.ready()
		if err == nil {
			return
		}
		wait("waiting for the authority of its certificate: " + err.Error())
		select {
		case <-p.ctx.Done():
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// authorities are certificates of authorities.
type authorities struct {
	pem  string
	pool *x509.CertPool
}

func parseAuthorities(text []byte) (authorities, error) {
	a := authorities{pem: string(text), pool: x509.NewCertPool()}
	if !a.pool.AppendCertsFromPEM(text) {
		return authorities{}, errors.New("no certificate in PEM")
	}
	return a, nil
}
