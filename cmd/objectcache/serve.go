// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime/debug"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"

	"github.com/kubeflow/datacache/internal/command"
	"github.com/kubeflow/datacache/internal/identity"
	"github.com/kubeflow/datacache/internal/opshttp"
	"github.com/kubeflow/datacache/internal/reload"
	"github.com/kubeflow/datacache/objectcache/buckets"
	"github.com/kubeflow/datacache/objectcache/budget"
	"github.com/kubeflow/datacache/objectcache/kube"
	"github.com/kubeflow/datacache/objectcache/mirror"
	"github.com/kubeflow/datacache/objectcache/router"
	"github.com/kubeflow/datacache/objectcache/serve"
	"github.com/kubeflow/datacache/objectcache/store"
)

// How the memory of an object cache is divided: half is for the index; of the other half, ownMemory is for the program itself and its
// connections to upstream servers, and the rest is for requests.
const (
	leastMemory  = 192 << 20
	ownMemory    = 32 << 20
	objectMemory = 100 // bytes of the index for an object
)

// lookEvery is the interval at which watched files are read.
const lookEvery = 2 * time.Second

// serveFlags are the complete configuration of an object cache.
type serveFlags struct {
	listen, http string
	dir, buckets string
	name         string
	standalone   bool
	tokens       string
	peers        map[string]string
	peersFile    string
	kube         kube.Config
	verifyEvery  time.Duration
	maxObjects   int64
	memory       string
	memoryBytes  int64 // memory in bytes, set by check
	partSize     string
	partBytes    int64 // partSize in bytes, set by check
	minFree      float64
	sync         bool
	grace        time.Duration
	tls          tlsFlags
	mirrors      mirrorFlags
	xds          xdsFlags
	logs         command.Logs
}

func (f *serveFlags) register(flags *pflag.FlagSet, env command.Env) {
	flags.StringVar(&f.listen, "listen", env.Or("LISTEN", ":8000"), "host:port for objects; port 0 takes a free one (env LISTEN)")
	flags.StringVar(&f.http, "http", env.Or("HTTP_LISTEN", ":8080"), "host:port for the page at / and /healthz /ready /status /metrics (env HTTP_LISTEN)")
	flags.StringVar(&f.dir, "dir", env("OBJECT_CACHE_DIR"), "folder for objects, of this process alone, on a local disk (env OBJECT_CACHE_DIR)")
	flags.StringVar(&f.buckets, "buckets", env("OBJECT_CACHE_BUCKETS"),
		"JSON or YAML file of buckets, quotas and who may use them; looked at again while serving (env OBJECT_CACHE_BUCKETS)")
	flags.StringVar(&f.name, "name", env("NODE_NAME"), "the node's name, by which keys are spread (default: the host's name; env NODE_NAME)")
	flags.DurationVar(&f.verifyEvery, "verify-every", store.DefaultVerifyEvery, "read an object against its checksum again after this long; negative: at every read")
	flags.Int64Var(&f.maxObjects, "max-objects", store.DefaultMaxObjects, "objects to keep at most: the index takes about 100 bytes of memory for each, and half of --memory-limit at most")
	flags.StringVar(&f.memory, "memory-limit", env.Or("MEMORY_LIMIT", "90%"),
		"memory for the index, for requests and for mirrors: bytes, a quantity such as 2Gi or 500MB, or a share of the container's (or machine's) memory (env MEMORY_LIMIT)")
	flags.StringVar(&f.partSize, "part-size", "1Gi",
		"keep objects longer than this in parts of this length, spread over the object caches; the same at all of them; 0: never")
	flags.Float64Var(&f.minFree, "min-free", 0.05, "fraction of the disk, and of its inodes, to leave free whoever uses them; 0: none")
	flags.BoolVar(&f.sync, "sync", false, "write each object to the disk before PUT is answered, so that it is there after a power cut; each PUT then waits for the disk")
	flags.DurationVar(&f.grace, "grace", 20*time.Second, "time that running requests get to end after SIGTERM")
	flags.StringVar(&f.kube.Audience, "audience", "datacache-object-cache", "what ServiceAccount tokens must be made for")
	flags.StringVar(&f.kube.Namespace, "namespace", env("POD_NAMESPACE"), "namespace of the object caches' Service (env POD_NAMESPACE)")
	flags.StringVar(&f.kube.Service, "service", "datacache-object-cache", "the Service whose ready endpoints share the keys")
	flags.StringVar(&f.kube.Port, "service-port", "objects", "name of its port")
	flags.StringVar(&f.kube.Kubeconfig, "kubeconfig", env("KUBECONFIG"), "file that says how to reach the API server (default: as the pod's ServiceAccount; env KUBECONFIG)")
	flags.BoolVar(&f.standalone, "standalone", false, "use no Kubernetes: tokens are those of --tokens, other object caches those of --peer")
	flags.StringVar(&f.tokens, "tokens", "", "with --standalone: file of lines TOKEN NAMESPACE; looked at again while serving")
	flags.StringToStringVar(&f.peers, "peer", nil, "with --standalone: NAME=HOST:PORT of an object cache that shares the keys, this one included; may be repeated")
	flags.StringVar(&f.peersFile, "peers", "", "with --standalone, in place of --peer: file of lines NAME HOST:PORT [ZONE]; looked at again while serving")
	f.tls.register(flags, env)
	f.mirrors.register(flags, env)
	f.xds.register(flags, env)
	f.logs.Register(flags, env)
}

// check validates the flags and sets defaults.
func (f *serveFlags) check() (err error) {
	switch {
	case f.dir == "":
		return errors.New("--dir: missing, want a folder on a local disk")
	case f.buckets == "":
		return errors.New("--buckets: missing, want a JSON file of buckets")
	case f.maxObjects < 1:
		return fmt.Errorf("--max-objects: %d, want at least 1", f.maxObjects)
	case f.minFree < 0 || f.minFree >= 1:
		return fmt.Errorf("--min-free: %g, want a fraction from 0 to below 1, such as 0.05", f.minFree)
	case f.standalone && f.tokens == "":
		return errors.New("--tokens: missing, --standalone wants a file of lines TOKEN NAMESPACE")
	case !f.standalone && (f.tokens != "" || len(f.peers) > 0 || f.peersFile != ""):
		return errors.New("--tokens, --peer and --peers are for --standalone: add it, or leave them out")
	case len(f.peers) > 0 && f.peersFile != "":
		return errors.New("--peer and --peers: both name the object caches that share the keys, want one of them")
	case !f.standalone && f.kube.Namespace == "":
		return errors.New("--namespace: missing, want the namespace of the object caches' Service")
	}
	if f.memoryBytes, err = command.ParseMemory(f.memory); err == nil && f.memoryBytes < leastMemory {
		err = fmt.Errorf("%q: %d MiB, want at least %d", f.memory, f.memoryBytes>>20, leastMemory>>20)
	}
	if err != nil {
		return fmt.Errorf("--memory-limit: %w", err)
	}
	if f.partSize != "0" {
		if f.partBytes, err = buckets.ParseQuantity(f.partSize); err != nil {
			return fmt.Errorf("--part-size: %w, or 0", err)
		}
	}
	switch {
	case !f.standalone:
		f.tls.complete(f.kube.Service, f.kube.Namespace)
	case f.tls.secret != "":
		return errors.New("--tls-authority-secret: is not for --standalone: give --tls-authority")
	}
	if err := errors.Join(f.tls.check(), f.mirrors.check(), f.xds.check(f.tls)); err != nil {
		return err
	}
	if f.name == "" {
		f.name, err = os.Hostname()
	}
	if _, known := f.peers[f.name]; len(f.peers) > 0 && !known {
		return fmt.Errorf("--peer: names %v but not this one, which is %q: add it, or set --name", f.peers, f.name)
	}
	return err
}

// process is what the parts of the process share: they run in the group until ctx ends.
type process struct {
	*errgroup.Group
	ctx context.Context
	log *slog.Logger
}

// listen opens the address that a flag gives.
func (p *process) listen(flag, address string) (net.Listener, error) {
	on, err := (&net.ListenConfig{}).Listen(p.ctx, "tcp", address)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", flag, err)
	}
	return on, nil
}

// watch calls changed with each new value of a file.
func watch[T any](p *process, f *reload.File[T], changed func(T)) {
	p.Go(func() error {
		f.Watch(p.ctx, lookEvery, p.log, changed)
		return nil
	})
}

// run serves until ctx ends.
func (f *serveFlags) run(ctx context.Context, log *slog.Logger) error {
	group, ctx := errgroup.WithContext(ctx)
	p := &process{Group: group, ctx: ctx, log: log}
	config, err := reload.Open(f.buckets, buckets.Parse)
	if err != nil {
		return fmt.Errorf("--buckets: %w", err)
	}
	objects, err := store.Open(store.Config{Dir: f.dir, Limits: f.limits(config.Get()), MinFree: f.minFree, VerifyEvery: f.verifyEvery, Sync: f.sync})
	if err != nil {
		return fmt.Errorf("--dir: %w", err)
	}
	defer func() { _ = objects.Close() }() // unlocks the folder before the process ends
	debug.SetMemoryLimit(f.memoryBytes)    // the garbage collector works harder before the process exceeds it
	members := router.New(f.name)
	reviewer, watchMembers, cluster, err := f.join(p)
	if err != nil {
		return err
	}
	secured, err := f.tls.load(p, cluster)
	if err != nil {
		return err
	}
	control, err := f.control(p, secured)
	if err != nil {
		return err
	}
	server := serve.New(serve.Config{
		Memory: budget.New(f.memoryBytes/2 - ownMemory), Fixed: f.standalone && f.peersFile == "", TLS: secured.config(), PartSize: f.partBytes, Collectors: control.collectors(),
		Store: objects, Buckets: config.Get, BucketsRejected: config.Rejected, Reviewer: reviewer, Router: members, Grace: f.grace, Log: log,
	})
	opened, err := f.mirrors.start(p, secured, mirror.Options{
		Store: objects, Buckets: config.Get, Router: members, Objects: server, Log: log,
	})
	if err != nil {
		return err
	}
	joined := make(chan struct{})
	once := sync.OnceFunc(func() { close(joined) })
	p.Go(func() error {
		secured.await(p, func(string) {}) // Envoys refuse a configuration without authorities
		watchMembers(ctx, func(now []router.Member, hosts []string) {
			control.setMembers(now)
			members.SetHosts(hosts)
			server.Membership.SetMembers(ctx, now)
			once()
		})
		return nil
	})
	err = f.open(p, secured, server, objects, joined, func() error {
		watch(p, config, func(c buckets.Config) { objects.SetLimits(f.limits(c)) }) // not before the store is scanned
		return opened()
	})
	if err != nil {
		return err
	}
	return group.Wait()
}

// open serves, objects when they are listed and others have said what changed. opened is called then.
func (f *serveFlags) open(p *process, secured *security, server *serve.Server, objects *store.Store, joined <-chan struct{}, opened func() error) error {
	data, err := p.listen("--listen", f.listen)
	if err != nil {
		return err
	}
	looks, err := p.listen("--http", f.http)
	if err != nil {
		return err
	}
	p.Go(func() error { return server.ServeOps(p.ctx, looks) })
	p.Go(func() error { return server.Serve(p.ctx, data) })
	p.Go(func() error {
		secured.await(p, server.Wait)
		if err := prepare(p.ctx, server, objects, joined); err != nil || p.ctx.Err() != nil {
			return err
		}
		p.log.Info("ready", "dir", f.dir, "name", f.name)
		server.Open()
		if err := opened(); err != nil {
			return err
		}
		fmt.Printf("ready %s://%s http://%s\n", f.tls.scheme(), opshttp.Reachable(data.Addr()), opshttp.Reachable(looks.Addr()))
		server.Membership.KeepAlive(p.ctx)
		return nil
	})
	return nil
}

// prepare scans the store and catches up with other members before objects are served. It returns early when ctx ends.
func prepare(ctx context.Context, server *serve.Server, objects *store.Store, joined <-chan struct{}) error {
	server.Wait("listing the objects of before")
	if err := objects.Scan(ctx); err != nil {
		return fmt.Errorf("--dir: %w", err)
	}
	server.Wait("waiting to learn who shares the keys")
	select {
	case <-joined:
	case <-ctx.Done():
		return nil
	}
	server.Wait("asking the others what changed")
	if err := server.Membership.Return(ctx); err != nil {
		return fmt.Errorf("--dir: %w", err)
	}
	return nil
}

// watchMembers calls changed with the ready members and the IP addresses of all members: once when they are known, and after each
// change, until ctx ends.
type watchMembers func(ctx context.Context, changed func(ready []router.Member, hosts []string))

// join returns the reviewer of tokens, a function that watches the members that share the keys, and the client of the cluster, which is nil with
// --standalone.
func (f *serveFlags) join(p *process) (identity.Reviewer, watchMembers, *kube.Client, error) {
	if !f.standalone {
		kube.LogTo(p.log)
		client, err := kube.New(f.kube)
		if err != nil {
			return nil, nil, nil, err
		}
		return client, client.Watch, client, nil
	}
	tokens, err := reload.Open(f.tokens, identity.ParseTokens)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("--tokens: %w", err)
	}
	watch(p, tokens, func(identity.Tokens) {})
	if f.peersFile == "" {
		peers, err := f.parsePeers()
		return identity.Static(tokens.Get), func(_ context.Context, changed func([]router.Member, []string)) { changed(peers, hostsOf(peers)) }, nil, err
	}
	peers, err := reload.Open(f.peersFile, router.Parse)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("--peers: %w", err)
	}
	if !router.Contains(peers.Get(), f.name) {
		return nil, nil, nil, fmt.Errorf("--peers: %s does not name this one, which is %q: add it, or set --name", f.peersFile, f.name)
	}
	return identity.Static(tokens.Get), func(ctx context.Context, changed func([]router.Member, []string)) {
		changed(peers.Get(), hostsOf(peers.Get()))
		peers.Watch(ctx, lookEvery, p.log, func(now []router.Member) { changed(now, hostsOf(now)) })
	}, nil, nil
}

// parsePeers returns the members of --peer.
func (f *serveFlags) parsePeers() ([]router.Member, error) {
	peers := make([]router.Member, 0, len(f.peers))
	for name, address := range f.peers {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, fmt.Errorf("--peer: %w", err)
		}
		peers = append(peers, router.Member{Name: name, Address: address})
	}
	return peers, nil
}

// hostsOf returns the hosts of the members' addresses.
func hostsOf(members []router.Member) []string {
	hosts := make([]string, 0, len(members))
	for _, m := range members {
		host, _, _ := net.SplitHostPort(m.Address) // checked before
		hosts = append(hosts, host)
	}
	return hosts
}

func (f *serveFlags) limits(c buckets.Config) store.Limits {
	limits := store.Limits{Total: c.TotalLimit, Objects: min(f.maxObjects, f.memoryBytes/2/objectMemory), Quotas: map[string]int64{}}
	for name, b := range c.Buckets {
		limits.Quotas[name] = b.Quota
	}
	return limits
}
