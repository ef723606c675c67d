// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kubeflow/datacache/internal/authority"
	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/ocitest"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

// newCA writes a new CA to a file, and returns its certificate.
func newCA(t *testing.T, path string) *x509.CertPool {
	t.Helper()
	certificate, key, err := authority.New("object caches", time.Now())
	if err != nil {
		t.Fatal(err)
	}
	write(t, path, string(authority.Join(certificate, key)))
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(certificate)
	return roots
}

// answer is an answer to a request; Status 0: there is none, and Text is the error.
type answer struct {
	Status int
	Text   string
}

// request sends a request as team-a on a connection of its own, verified by roots.
func request(t *testing.T, roots *x509.CertPool, method, url, body string) answer {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, DisableKeepAlives: true}}
	r, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	response, err := client.Do(r)
	if err != nil {
		return answer{Text: err.Error()}
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return answer{Text: err.Error()}
	}
	return answer{response.StatusCode, string(text)}
}

// TestCertificatesOfACA runs two object caches that make their certificates from a CA, forward to each other, and take plain text on the same
// port. The CA is then replaced.
func TestCertificatesOfACA(t *testing.T) {
	t.Parallel()
	ca := filepath.Join(t.TempDir(), "authority.pem")
	roots := newCA(t, ca)
	addresses := map[string]string{"here": proctest.FreeAddress(t), "there": proctest.FreeAddress(t)}
	args := []string{"--tls-authority", ca}
	for name, address := range addresses {
		args = append(args, "--peer", name+"="+address)
	}
	nodes := map[string]*process{}
	for name, address := range addresses {
		nodes[name] = start(t, options{args: append([]string{"--name", name, "--listen", address}, args...)})
		if want := "https://" + address; nodes[name].url != want {
			t.Errorf("it serves at %s, want %s", nodes[name].url, want)
		}
	}
	url := func(scheme, name string, key int) string {
		return fmt.Sprintf("%s://%s/v1/objects/open/%d", scheme, addresses[name], key)
	}
	body := content("key", 0, 3<<20)
	for key := range 8 { // of both nodes
		if got := request(t, roots, http.MethodPut, url("https", "here", key), body); got.Status != http.StatusCreated {
			t.Fatalf("PUT %d: %d %s", key, got.Status, got.Text)
		}
		for _, scheme := range []string{"https", "http"} {
			if got := request(t, roots, http.MethodGet, url(scheme, "there", key), ""); got.Status != http.StatusOK || got.Text != body {
				t.Errorf("GET %d by %s: %d with %d bytes", key, scheme, got.Status, len(got.Text))
			}
		}
	}
	if nodes["here"].metric("forwards_total") == 0 {
		t.Error("nothing was forwarded")
	}
	if got := request(t, newCA(t, filepath.Join(t.TempDir(), "other.pem")), http.MethodGet, url("https", "here", 0), ""); !strings.Contains(got.Text, "unknown authority") {
		t.Errorf("by another CA: %v", got)
	}
	deadline.Eventually(t, func() error {
		if n := nodes["here"].metric("tls_handshakes_failed_total"); n != 1 {
			return fmt.Errorf("%g failed handshakes are counted, want 1", n)
		}
		return nil
	})
	roots = newCA(t, ca)
	deadline.Eventually(t, func() error {
		for key := range 8 {
			if got := request(t, roots, http.MethodGet, url("https", "here", key), ""); got.Status != http.StatusOK {
				return fmt.Errorf("by the new CA: %v", got)
			}
		}
		return nil
	})
}

// TestPlainTextIsRefused checks what clients are told that speak plain text where it is not allowed: with --plain-text=false, and with a
// certificate from elsewhere.
func TestPlainTextIsRefused(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ca, certFile, keyFile := filepath.Join(dir, "authority.pem"), filepath.Join(dir, "tls.crt"), filepath.Join(dir, "tls.key")
	roots := newCA(t, ca)
	a := newAuthority(t)
	cert, key := a.issue(t, 2)
	for name, args := range map[string][]string{
		"a CA":          {"--tls-authority", ca, "--plain-text=false"},
		"a certificate": {"--tls-cert", write(t, certFile, cert), "--tls-key", write(t, keyFile, key), "--tls-ca", write(t, filepath.Join(dir, "ca.crt"), a.pem), "--tls-name", "cache"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := start(t, options{args: args})
			plain := strings.Replace(p.url, "https://", "http://", 1) + "/v1/objects/open/key"
			if got := request(t, nil, http.MethodPut, plain, "body"); got.Status != http.StatusForbidden || !strings.Contains(got.Text, "takes TLS only: use https://") {
				t.Errorf("in plain text: %v", got)
			}
			if name == "a CA" {
				if got := request(t, roots, http.MethodGet, p.url+"/v1/objects/open/key", ""); got.Status != http.StatusNotFound {
					t.Errorf("by TLS: %v", got)
				}
			}
		})
	}
}

// TestUploadsByTLS checks that the bodies of many requests over TLS take no memory of headers.
func TestUploadsByTLS(t *testing.T) {
	t.Parallel()
	ca := filepath.Join(t.TempDir(), "authority.pem")
	roots := newCA(t, ca)
	p := start(t, options{args: []string{"--tls-authority", ca, "--memory-limit", "192Mi"}})
	const uploads = 16 // whose headers would take more than a third of the memory for requests
	body := content("body", 0, 1<<20)
	for i := range uploads {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(p.url, "https://"), &tls.Config{RootCAs: roots}) //nolint:noctx // the test's own server
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		header := fmt.Sprintf("PUT /v1/objects/open/upload-%d HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", i, token, len(body)+1)
		if _, err := io.WriteString(conn, header+body); err != nil { // all but the last byte
			t.Fatal(err)
		}
	}
	if got := request(t, roots, http.MethodPut, p.url+"/v1/objects/open/whole", body); got.Status != http.StatusCreated {
		t.Errorf("beside %d uploads: %v", uploads, got)
	}
}

// TestImagesByTLS pulls an image by containerd's client from a mirror that refuses plain text, by the hosts.toml that the mirror writes, and again
// when the CA is another one.
func TestImagesByTLS(t *testing.T) {
	t.Parallel()
	registry := ocitest.Start(t)
	image := registry.Push(t, "acme/app", []string{content("layer", 0, 1000)}, puller)
	ca, dir := filepath.Join(t.TempDir(), "authority.pem"), t.TempDir()
	newCA(t, ca)
	mirrors := write(t, filepath.Join(t.TempDir(), "mirrors.yaml"),
		fmt.Sprintf("images: {bucket: images, registries: [{name: %q, upstream: %q}]}\n", registry.Host, registry.URL))
	p := start(t, options{buckets: write(t, filepath.Join(t.TempDir(), "buckets.json"), mirrorBuckets), args: []string{
		"--mirrors", mirrors, "--mirror-listen", "127.0.0.1:0", "--write-hosts", dir, "--tls-authority", ca, "--plain-text=false",
	}})
	if err := pull(t, dir, puller, image.Name, whole(image)); err != nil {
		t.Fatal(err)
	}
	for digest, text := range image.Blobs {
		if sent := registry.Sent(digest); sent != int64(len(text)) {
			t.Errorf("the registry sent %d bytes of %s, want %d", sent, digest, len(text))
		}
	}
	registry.Stop() // so that only the mirror can answer
	newCA(t, ca)
	deadline.Eventually(t, func() error { return pull(t, dir, puller, image.Name, whole(image)) })
	p.stop()
	if left, err := filepath.Glob(filepath.Join(dir, "_default", "*")); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

// TestAConnectionThatSaysNothing checks that it keeps nobody out.
func TestAConnectionThatSaysNothing(t *testing.T) {
	t.Parallel()
	ca := filepath.Join(t.TempDir(), "authority.pem")
	roots := newCA(t, ca)
	p := start(t, options{args: []string{"--tls-authority", ca}})
	for range 4 {
		conn, err := (&net.Dialer{}).DialContext(t.Context(), "tcp", strings.TrimPrefix(p.url, "https://"))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
	}
	if got := request(t, roots, http.MethodGet, p.url+"/v1/objects/open/key", ""); got.Status != http.StatusNotFound {
		t.Error(got)
	}
	p.stop()
}

// TestEnvoyByTLS checks that Envoy, whose clients send plain text, reaches object caches that refuse it, and follows them to another CA.
func TestEnvoyByTLS(t *testing.T) {
	t.Parallel()
	ca := filepath.Join(t.TempDir(), "authority.pem")
	newCA(t, ca)
	f := startFleet(t, "--tls-authority", ca, "--plain-text=false")
	e := startEnvoy(t, f.xds["a"], f.listener, "")
	e.await()
	e.becomes("cluster.objects.membership_total", 3)
	for i := range 30 { // of all nodes
		for _, method := range []string{http.MethodPut, http.MethodGet} {
			if status, text, err := ask(t, e.address, method, fmt.Sprintf("open//%d", i), "body"); err != nil || status/100 != 2 {
				t.Fatalf("%s %d: %d %s, %v", method, i, status, text, err)
			}
		}
	}
	if n := f.forwards("a", "b", "c"); n != 0 {
		t.Errorf("%g requests were forwarded, want none", n)
	}
	newCA(t, ca)
	e.becomes("cluster_manager.cluster_modified", 1) // with connections of its own
	deadline.Eventually(t, func() error {
		status, text, err := ask(t, e.address, http.MethodGet, "open//0", "")
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("%d %s", status, text)
		}
		return err
	})
}
