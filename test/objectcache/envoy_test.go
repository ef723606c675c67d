// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// awkward returns distinct keys of pieces that proxies like to change.
func awkward(t *testing.T, n int) []string {
	t.Helper()
	random := seedtest.New(t)
	pieces := []string{
		"/", "//", "/./", "/../", "..", ".", "%2F", "%2f", "%5C", "%2e%2E", "%20", "%C3%A9", "%25", "%3F", "?", "?a=b&c", "&", "=", "+",
		"~", ";", ":", "@", "!", "$", "'", "(", ")", "*", ",", "a", "B", "data", "0",
	}
	seen := map[string]bool{}
	keys := make([]string, 0, n)
	for len(keys) < n {
		var key strings.Builder
		for range 1 + random.IntN(8) {
			key.WriteString(pieces[random.IntN(len(pieces))])
		}
		if k := key.String(); !seen[k] {
			seen[k] = true
			keys = append(keys, k)
		}
	}
	return keys
}

// each calls do for all keys, some at a time, and fails the test with the first error.
func each(t *testing.T, keys []string, do func(key string) error) {
	t.Helper()
	var group errgroup.Group
	group.SetLimit(16)
	for _, key := range keys {
		group.Go(func() error { return do(key) })
	}
	if err := group.Wait(); err != nil {
		t.Fatal(err)
	}
}

// wants returns a function that sends a request for a key to an address, and returns an error if the answer has another status.
func wants(t *testing.T, address, method string, want int) func(key string) error {
	return func(key string) error {
		body := ""
		if method == http.MethodPut {
			body = "of " + key
		}
		status, text, err := ask(t, address, method, key, body)
		if err == nil && status != want {
			err = fmt.Errorf("%s %s: %d %.80s, want %d", method, key, status, text, want)
		}
		if err == nil && method == http.MethodGet && want == http.StatusOK && text != "of "+key {
			err = fmt.Errorf("GET %s: %.80q", key, text)
		}
		return err
	}
}

// TestEnvoyKnowsOwners sends requests through Envoy: no object cache may have to forward one. Then the owner of a third of the keys
// is killed: at first it is listed and refuses connections, then its endpoint is removed.
func TestEnvoyKnowsOwners(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	e := startEnvoy(t, f.xds["a"], f.listener, "")
	e.await()
	e.becomes("cluster.objects.membership_total", 3)
	keys := awkward(t, 4000)
	each(t, keys, wants(t, e.address, http.MethodPut, http.StatusCreated))
	each(t, keys, wants(t, e.address, http.MethodGet, http.StatusOK))
	if n := f.forwards("a", "b", "c"); n != 0 {
		t.Errorf("%g requests were forwarded, want none", n)
	}
	var lost, kept []string // keys that c owns, and all others
	for _, key := range keys {
		owners := f.owners(key)
		if len(owners) != 1 {
			t.Fatalf("%s is at %v, want one object cache", key, owners)
		}
		if owners[0] == "c" {
			lost = append(lost, key)
		} else {
			kept = append(kept, key)
		}
	}
	if len(lost) < 1000 || len(lost) > 1700 {
		t.Errorf("one of three has %d of %d keys, want about a third", len(lost), len(keys))
	}

	f.processes["c"].kill()
	each(t, kept, wants(t, e.address, http.MethodGet, http.StatusOK))
	if n := f.forwards("a", "b"); n != 0 {
		t.Errorf("%g requests for keys of others were forwarded, want none", n)
	}
	each(t, lost[:500], wants(t, e.address, http.MethodGet, http.StatusNotFound))
	each(t, lost[:50], func(key string) error { // Datacache-Hop would make the object cache serve a key of another owner
		status, text, err := ask(t, e.address, http.MethodPut, key, "body", "Datacache-Hop", "1")
		if err == nil && status != http.StatusServiceUnavailable {
			err = fmt.Errorf("PUT %s: %d %.80s, want 503", key, status, text)
		}
		return err
	})

	for _, name := range []string{"a", "b"} {
		f.tell(name, "a", "b")
		f.knows(name, 2)
	}
	e.becomes("cluster.objects.membership_total", 2)
	before := f.forwards("a", "b")
	each(t, lost, wants(t, e.address, http.MethodPut, http.StatusCreated))
	each(t, lost, wants(t, e.address, http.MethodGet, http.StatusOK))
	if n := f.forwards("a", "b") - before; n != 0 {
		t.Errorf("%g requests were forwarded after the endpoint was removed, want none", n)
	}
	if n, err := e.stat("cluster.objects.upstream_cx_connect_fail"); err != nil || n == 0 {
		t.Errorf("%d failed connections (%v), want some: the test shows nothing about an owner that refuses them", n, err)
	}
}

// TestEnvoySpreadsBatches sends requests for many objects, whose keys belong to many nodes: one bucket's may not all go to one node.
func TestEnvoySpreadsBatches(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	e := startEnvoy(t, f.xds["a"], f.listener, "")
	e.await()
	e.becomes("cluster.objects.membership_total", 3)
	keys := slices.DeleteFunc(awkward(t, 30), func(key string) bool { return strings.HasSuffix(key, "/") }) // tar has no files with such names
	each(t, keys, wants(t, e.address, http.MethodPut, http.StatusCreated))
	before := e.requests()
	for range 40 {
		status, text, err := send(t, e.address, http.MethodPost, "open?batch", strings.Join(keys, "\n")+"\n")
		missing := func(key string) bool { return !strings.Contains(text, "of "+key) }
		if err != nil || status != http.StatusOK || slices.ContainsFunc(keys, missing) {
			t.Fatalf("%d %.300q, %v, want all objects", status, text, err)
		}
	}
	for host, n := range e.requests() {
		if n == before[host] {
			t.Errorf("%s got none of 40 batches", host)
		}
	}
	if len(before) != 3 {
		t.Errorf("Envoy tells of requests to %v, want three hosts", before)
	}
}

// TestEnvoyMembersChangeUnderLoad removes and adds an endpoint while clients write: all writes must succeed. An object cache learns
// last that it is no longer a member, and first that it is one again, so that none is asked for what it may not answer.
func TestEnvoyMembersChangeUnderLoad(t *testing.T) {
	if testing.Short() {
		t.Skip("make nightly runs it")
	}
	t.Parallel()
	f := startFleet(t)
	e := startEnvoy(t, f.xds["a"], f.listener, "")
	e.await()
	e.becomes("cluster.objects.membership_total", 3)
	keys := awkward(t, 1000)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var written atomic.Int64
	var failed sync.Map
	var clients sync.WaitGroup
	for i := range 8 {
		clients.Go(func() {
			put := wants(t, e.address, http.MethodPut, http.StatusCreated)
			for n := i; ctx.Err() == nil; n += 8 {
				key := keys[n%len(keys)]
				if err := put(key); err != nil && ctx.Err() == nil {
					failed.Store(key, err)
				}
				written.Add(1)
			}
		})
	}
	for range 3 {
		for _, name := range []string{"a", "b", "c"} {
			f.tell(name, "a", "b")
			f.knows(name, 2)
			e.becomes("cluster.objects.membership_total", 2) // Envoy learns the members from a
		}
		for _, name := range []string{"c", "b", "a"} {
			f.tell(name, "a", "b", "c")
			f.knows(name, 3)
			f.caughtUp(name)
		}
		e.becomes("cluster.objects.membership_total", 3)
	}
	cancel()
	clients.Wait()
	failed.Range(func(key, err any) bool {
		t.Errorf("%s: %v", key, err)
		return true
	})
	t.Logf("%d objects written", written.Load())
	if n, err := e.stat("cluster.objects.lb_healthy_panic"); err != nil || n != 0 {
		t.Errorf("%d requests in panic mode (%v)", n, err)
	}
}

// TestEnvoyChangesItsControlPlane leads Envoy from one xDS server to another, as when its object cache is replaced. Nothing it knows
// may be sent again, keys must be found meanwhile, and changes come from the other server afterwards.
func TestEnvoyChangesItsControlPlane(t *testing.T) {
	t.Parallel()
	f := startFleet(t)
	d := newForwarder(t, "") // at first there is no control plane
	e := startEnvoy(t, d.address, f.listener, "")
	deadline.Eventually(t, func() error {
		n, err := e.stat("cluster.xds.upstream_cx_total")
		if err == nil && n == 0 {
			err = fmt.Errorf("Envoy has not tried to connect yet")
		}
		return err
	})
	if _, _, err := e.get("http://" + e.address + "/ready"); err == nil {
		t.Error("Envoy is ready without a configuration")
	}
	d.lead(f.xds["a"])
	e.await()
	e.becomes("cluster.objects.membership_total", 3)
	keys := awkward(t, 300)
	each(t, keys, wants(t, e.address, http.MethodPut, http.StatusCreated))

	d.lead("")
	e.becomes("control_plane.connected_state", 0)
	each(t, keys, wants(t, e.address, http.MethodGet, http.StatusOK))
	d.lead(f.xds["b"])
	e.becomes("control_plane.connected_state", 1)
	for _, name := range []string{"b", "a", "c"} {
		f.tell(name, "a", "b")
		f.knows(name, 2)
	}
	e.becomes("cluster.objects.membership_total", 2)
	for name, want := range map[string]int{
		"cluster.objects.membership_change": 2, "cluster_manager.cluster_added": 3, "cluster_manager.cluster_modified": 0,
		"listener_manager.listener_modified": 0,
	} {
		if got, err := e.stat(name); err != nil || got != want {
			t.Errorf("%s is %d (%v), want %d", name, got, err, want)
		}
	}
	if n := f.forwards("a", "b", "c"); n != 0 {
		t.Errorf("%g requests were forwarded, want none", n)
	}
	for name, p := range f.processes {
		if n, found := p.metricSum("datacache_xds_rejected_total"); n != 0 || !found {
			t.Errorf("%g updates of %s were rejected (there is a metric: %v), want none", n, name, found)
		}
	}
}

// TestEnvoyGetsItsConfigurationOverTLS runs Envoy with the lines that docs/object-cache-envoy.md says, and a client without a certificate.
func TestEnvoyGetsItsConfigurationOverTLS(t *testing.T) {
	t.Parallel()
	servers, clients, dir := newAuthority(t), newAuthority(t), t.TempDir()
	cert, key := servers.issue(t, 2)
	clientCert, clientKey := clients.issue(t, 3)
	files := map[string]string{}
	for name, text := range map[string]string{
		"cert": cert, "key": key, "CA": servers.pem, "client-ca": clients.pem, "CLIENT_CERT": clientCert, "CLIENT_KEY": clientKey,
	} {
		files[name] = write(t, filepath.Join(dir, name), text)
	}
	f := startFleet(t, "--xds-tls-cert", files["cert"], "--xds-tls-key", files["key"], "--xds-tls-client-ca", files["client-ca"])

	page, err := os.ReadFile("../../docs/object-cache-envoy.md")
	if err != nil {
		t.Fatal(err)
	}
	_, lines, found := strings.Cut(string(page), "```yaml\n    transport_socket:")
	lines, _, ended := strings.Cut(lines, "```")
	if !found || !ended {
		t.Fatal("docs/object-cache-envoy.md has no transport_socket")
	}
	for name, value := range map[string]string{
		"sni: NAME": "sni: cache", "exact: NAME": "exact: cache", "filename: CA": "filename: " + files["CA"],
		"filename: CLIENT_CERT": "filename: " + files["CLIENT_CERT"], "filename: CLIENT_KEY": "filename: " + files["CLIENT_KEY"],
	} {
		lines = strings.Replace(lines, name, value, 1)
	}
	e := startEnvoy(t, f.xds["a"], f.listener, "    transport_socket:"+lines)
	e.await()
	e.becomes("cluster.objects.membership_total", 3)

	roots := x509.NewCertPool()
	roots.AddCert(servers.cert)
	dialer := &tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: "cache", NextProtos: []string{"h2"}}}
	conn, err := dialer.DialContext(t.Context(), "tcp", f.xds["a"])
	if err == nil { // in TLS 1.3 the server rejects the client after the client's handshake is done
		_, err = io.Copy(io.Discard, conn)
		conn.Close()
	}
	if err == nil || !strings.Contains(err.Error(), "certificate") {
		t.Errorf("a client without a certificate: error %v, want one about its certificate", err)
	}
}

// TestEnvoyOverTLS serves objects over TLS at the object caches and at Envoy. The object caches' authority is replaced first, so that
// Envoy must refuse them, and then their certificate. Envoy's own certificate is renewed.
func TestEnvoyOverTLS(t *testing.T) {
	t.Parallel()
	first, second, front, dir := newAuthority(t), newAuthority(t), newAuthority(t), t.TempDir()
	replace := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.Rename(write(t, file+".new", text), file); err != nil { // Envoy watches for renamed files only, as volumes have
			t.Fatal(err)
		}
		return file
	}
	issue := func(a *signer, serial int64, name string) (certFile, keyFile string) {
		t.Helper()
		cert, key := a.issue(t, serial)
		return replace(name+".crt", cert), replace(name+".key", key)
	}
	certFile, keyFile := issue(first, 2, "cache")
	frontCert, frontKey := issue(front, 3, "front")
	secret := replace("objects.yaml", fmt.Sprintf(`resources:
- "@type": type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.Secret
  name: objects
  tls_certificate: {certificate_chain: {filename: %s}, private_key: {filename: %s}}
`, frontCert, frontKey))
	f := startFleet(t, "--tls-cert", certFile, "--tls-key", keyFile, "--tls-ca", replace("ca.crt", first.pem), "--tls-name", "cache", "--xds-envoy-cert", secret)
	e := startEnvoy(t, f.xds["a"], f.listener, "")

	roots := x509.NewCertPool()
	roots.AddCert(front.cert)
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: "cache"}, DisableKeepAlives: true}}
	ask := func(method, path, body string) (status int, serial int64, err error) {
		request, err := http.NewRequestWithContext(t.Context(), method, "https://"+e.address+path, strings.NewReader(body))
		if err != nil {
			return 0, 0, err
		}
		request.Header.Set("Authorization", "Bearer "+token)
		response, err := client.Do(request)
		if err != nil {
			return 0, 0, err
		}
		defer response.Body.Close()
		_, err = io.Copy(io.Discard, response.Body)
		return response.StatusCode, response.TLS.PeerCertificates[0].SerialNumber.Int64(), err
	}
	becomes := func(what, path string, status int, serial int64) {
		t.Helper()
		deadline.Eventually(t, func() error {
			e.process.Alive()
			got, by, err := ask(http.MethodGet, path, "")
			if err == nil && (got != status || by != serial) {
				err = fmt.Errorf("%s: status %d by certificate %d, want %d by %d", what, got, by, status, serial)
			}
			return err
		})
	}
	becomes("Envoy has its configuration", "/ready", http.StatusOK, 3)
	e.becomes("cluster.objects.membership_total", 3)
	for i := range 30 { // of all nodes
		path := fmt.Sprintf("/v1/objects/open//%d", i)
		if status, _, err := ask(http.MethodPut, path, "body"); err != nil || status != http.StatusCreated {
			t.Fatalf("PUT %s: %d, %v, want 201", path, status, err)
		}
		if status, _, err := ask(http.MethodGet, path, ""); err != nil || status != http.StatusOK {
			t.Fatalf("GET %s: %d, %v, want 200", path, status, err)
		}
	}
	if n := f.forwards("a", "b", "c"); n != 0 {
		t.Errorf("%g requests were forwarded, want none", n)
	}
	replace("ca.crt", second.pem)
	becomes("object caches of another authority", "/v1/objects/open//0", http.StatusServiceUnavailable, 3)
	issue(second, 4, "cache")
	becomes("object caches of the new authority", "/v1/objects/open//0", http.StatusOK, 3)
	issue(front, 5, "front")
	becomes("Envoy's new certificate", "/v1/objects/open//0", http.StatusOK, 5)
}
