// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

// fleet is three object caches that share keys, named "a", "b" and "c", each an xDS server.
type fleet struct {
	t         *testing.T
	processes map[string]*process
	addresses map[string]string // address of the objects port, by node name
	xds       map[string]string // address of the xDS server, by node name
	peers     map[string]string // path of the --peers file, by node name
	listener  string            // the address at which Envoys are told to accept clients
}

// zones puts two of three members in one zone: weights of zones must not matter.
var zones = map[string]string{"a": "east", "b": "east", "c": "west"}

// startFleet starts the object caches with additional arguments; each has a file of members, all of them at first.
func startFleet(t *testing.T, args ...string) *fleet {
	t.Helper()
	f := &fleet{
		t: t, listener: proctest.FreeAddress(t), processes: map[string]*process{},
		addresses: map[string]string{}, xds: map[string]string{}, peers: map[string]string{},
	}
	dir := t.TempDir()
	for name := range zones {
		f.addresses[name], f.xds[name], f.peers[name] = proctest.FreeAddress(t), proctest.FreeAddress(t), filepath.Join(dir, "peers-"+name)
	}
	for name := range zones {
		f.tell(name, "a", "b", "c")
		f.processes[name] = launch(t, options{args: append([]string{
			"--name", name, "--listen", f.addresses[name], "--peers", f.peers[name], "--xds", f.xds[name], "--xds-envoy", f.listener,
		}, args...)})
	}
	for _, p := range f.processes {
		p.await()
	}
	return f
}

// tell replaces the members that one object cache knows of. The file is replaced whole, as a half of it would be a valid file too.
func (f *fleet) tell(who string, members ...string) {
	f.t.Helper()
	var text strings.Builder
	for _, name := range members {
		fmt.Fprintln(&text, name, f.addresses[name], zones[name])
	}
	if err := os.Rename(write(f.t, f.peers[who]+".new", text.String()), f.peers[who]); err != nil {
		f.t.Fatal(err)
	}
}

// knows waits until an object cache has a number of members.
func (f *fleet) knows(who string, members int) {
	f.t.Helper()
	deadline.Eventually(f.t, func() error {
		if got := f.processes[who].metric("members"); got != float64(members) {
			return fmt.Errorf("%s knows of %g members, want %d", who, got, members)
		}
		return nil
	})
}

// caughtUp waits until an object cache that is a member again has removed what changed meanwhile, and answers.
func (f *fleet) caughtUp(who string) {
	f.t.Helper()
	deadline.Eventually(f.t, func() error {
		status, text, err := ask(f.t, f.addresses[who], http.MethodGet, "none", "", "Datacache-Hop", "1")
		if err == nil && status != http.StatusNotFound {
			err = fmt.Errorf("%s answers %d %s, want 404", who, status, text)
		}
		return err
	})
}

// forwards is the number of requests that the object caches sent on to each other.
func (f *fleet) forwards(names ...string) (sum float64) {
	f.t.Helper()
	for _, name := range names {
		n, _ := f.processes[name].metricSum("datacache_objectcache_forwards_total")
		sum += n
	}
	return sum
}

// owners asks each object cache directly, with the header of a forwarded request, for an object, and returns the names of those that
// have it.
func (f *fleet) owners(key string) (names []string) {
	f.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(f.processes)) {
		status, _, err := ask(f.t, f.addresses[name], http.MethodGet, key, "", "Datacache-Hop", "1")
		if err != nil {
			f.t.Fatal(err)
		}
		if status == http.StatusOK {
			names = append(names, name)
		}
	}
	return names
}

// direct is a client that keeps many connections.
var direct = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}}

// ask sends a request for a key of the bucket "open", with additional headers.
func ask(t *testing.T, address, method, key, body string, headers ...string) (status int, text string, err error) {
	t.Helper()
	return send(t, address, method, "open/"+key, body, headers...)
}

// send sends a request for a target below /v1/objects/, which is not encoded in any way, with additional headers.
func send(t *testing.T, address, method, target, body string, headers ...string) (status int, text string, err error) {
	t.Helper()
	request := (&http.Request{
		Method: method, Host: "cache", URL: &url.URL{Scheme: "http", Host: address, Opaque: "/v1/objects/" + target},
		Header: http.Header{"Authorization": {"Bearer " + token}}, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)),
	}).WithContext(t.Context())
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	if body == "" {
		request.Body = http.NoBody
	}
	response, err := direct.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	got, err := io.ReadAll(response.Body)
	return response.StatusCode, string(got), err
}

// forwarder is a TCP proxy whose destination can be changed, as that of a Service does.
type forwarder struct {
	address string
	mu      sync.Mutex
	to      string // address that connections are forwarded to; "": they are closed
	open    map[net.Conn]bool
}

// newForwarder starts a forwarder to an address.
func newForwarder(t *testing.T, to string) *forwarder {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &forwarder{address: listener.Addr().String(), to: to, open: map[net.Conn]bool{}}
	var served sync.WaitGroup
	served.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			served.Go(func() { d.serve(conn) })
		}
	})
	t.Cleanup(func() {
		listener.Close()
		d.lead("")
		served.Wait()
	})
	return d
}

// lead cuts the connections, and leads new ones to another address.
func (d *forwarder) lead(to string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.to = to
	for conn := range d.open {
		conn.Close()
	}
	clear(d.open)
}

func (d *forwarder) serve(in net.Conn) {
	defer in.Close()
	d.mu.Lock()
	to := d.to
	d.mu.Unlock()
	if to == "" {
		return
	}
	out, err := (&net.Dialer{}).DialContext(context.Background(), "tcp", to) //nolint:forbidigo // it ends with the forwarder
	if err != nil {
		return
	}
	defer out.Close()
	d.mu.Lock()
	if d.to != to {
		d.mu.Unlock()
		return
	}
	d.open[in], d.open[out] = true, true
	d.mu.Unlock()
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(out, in)
		out.Close()
	}()
	_, _ = io.Copy(in, out)
	in.Close()
	<-done
}

// envoy is a running Envoy.
type envoy struct {
	t       *testing.T
	address string // where Envoy accepts clients
	admin   string
	process *proctest.Process
}

// startEnvoy runs Envoy with the configuration of manifests/components/envoy, where only addresses are replaced. Its xDS server is at the address xds, and its configuration says that it accepts clients at listener. Lines in more are added to
// the cluster of the xDS server.
func startEnvoy(t *testing.T, xds, listener, more string) *envoy {
	t.Helper()
	python := os.Getenv("DATACACHE_CLIENTS_PYTHON")
	if python == "" {
		t.Skip("DATACACHE_CLIENTS_PYTHON names no Python beside which there is an Envoy: run by make, which makes one of hack/python/clients.txt")
	}
	shipped, err := os.ReadFile("../../manifests/components/envoy/envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	config := string(shipped)
	e := &envoy{t: t, address: listener, admin: proctest.FreeAddress(t)}
	for old, address := range map[string]string{
		"{address: datacache-object-cache-xds.datacache-object-cache.svc, port_value: 18000}": xds,
		"{address: 127.0.0.1, port_value: 9901}":                                              e.admin,
		"{address: 0.0.0.0, port_value: 9902}":                                                proctest.FreeAddress(t),
	} {
		host, port, err := net.SplitHostPort(address)
		if err != nil || !strings.Contains(config, old) {
			t.Fatalf("envoy.yaml lacks %s, or %v", old, err)
		}
		config = strings.ReplaceAll(config, old, fmt.Sprintf("{address: %s, port_value: %s}", host, port))
	}
	config = strings.Replace(config, "    type: STRICT_DNS\n", "    type: STRICT_DNS\n"+more, 1)
	file := write(t, filepath.Join(t.TempDir(), "envoy.yaml"), config)
	args := strings.Fields("--service-node here --service-cluster test --concurrency 2 --disable-hot-restart --log-level warn --config-path")
	program := filepath.Join(filepath.Dir(python), "envoy")
	e.process = proctest.Start(t, "Envoy", []string{"PATH=" + os.Getenv("PATH")}, program, append(args, file)...)
	return e
}

// await waits until Envoy has its configuration.
func (e *envoy) await() {
	e.t.Helper()
	deadline.Eventually(e.t, func() error {
		e.process.Alive()
		status, text, err := e.get("http://" + e.address + "/ready")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("/ready: %d %s", status, text)
		}
		return err
	})
}

func (e *envoy) get(url string) (status int, text string, err error) {
	return proctest.Request(e.t.Context(), http.DefaultClient, http.MethodGet, url)
}

// stat is the value of one of Envoy's statistics.
func (e *envoy) stat(name string) (int, error) {
	_, text, err := e.get("http://" + e.admin + "/stats?filter=^" + url.QueryEscape(strings.ReplaceAll(name, ".", `\.`)) + "$")
	if err != nil {
		return 0, err
	}
	_, value, found := strings.Cut(strings.TrimSpace(text), ": ")
	if !found {
		return 0, errors.New("no statistic " + name)
	}
	return strconv.Atoi(value)
}

// requests returns how many requests Envoy has sent to each host of the cluster "objects".
func (e *envoy) requests() map[string]string {
	e.t.Helper()
	_, text, err := e.get("http://" + e.admin + "/clusters")
	if err != nil {
		e.t.Fatal(err)
	}
	found := map[string]string{}
	for line := range strings.Lines(text) {
		if parts := strings.Split(strings.TrimSpace(line), "::"); len(parts) == 4 && parts[0] == "objects" && parts[2] == "rq_total" {
			found[parts[1]] = parts[3]
		}
	}
	return found
}

// becomes waits until a statistic has a value.
func (e *envoy) becomes(name string, want int) {
	e.t.Helper()
	deadline.Eventually(e.t, func() error {
		e.process.Alive()
		if got, err := e.stat(name); err != nil || got != want {
			return fmt.Errorf("%s is %d (%w), want %d", name, got, err, want)
		}
		return nil
	})
}
