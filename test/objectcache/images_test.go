// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/containerd/v2/core/remotes/docker/config"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/kubeflow/datacache/test/kit/ocitest"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

const (
	puller      = "puller:secret"
	otherPuller = "other:secret"
)

// startImageMirrors runs n object caches that mirror a registry. Each names itself to a containerd in a folder of its own.
func startImageMirrors(t *testing.T, n int, registry *ocitest.Registry) (nodes []*process, hostsDirs []string) {
	t.Helper()
	mirrors := write(t, filepath.Join(t.TempDir(), "mirrors.yaml"),
		fmt.Sprintf("images: {bucket: images, registries: [{name: %q, upstream: %q}]}\n", registry.Host, registry.URL))
	bucketsFile := write(t, filepath.Join(t.TempDir(), "buckets.json"), mirrorBuckets)
	var peers, addresses []string
	for i := range n {
		addresses = append(addresses, proctest.FreeAddress(t))
		peers = append(peers, "--peer", fmt.Sprintf("node-%d=%s", i, addresses[i]))
	}
	for i, address := range addresses {
		dir := t.TempDir()
		hostsDirs = append(hostsDirs, dir)
		args := []string{"--name", fmt.Sprintf("node-%d", i), "--listen", address, "--mirror-listen", "127.0.0.1:0", "--mirrors", mirrors, "--write-hosts", dir}
		nodes = append(nodes, start(t, options{buckets: bucketsFile, args: append(args, peers...)}))
	}
	return nodes, hostsDirs
}

// pull pulls an image by containerd's own client, with the registry hosts of a folder. read is called for each blob.
func pull(t *testing.T, hostsDir, credentials, image string, read func(ocispec.Descriptor, io.Reader) error) error {
	t.Helper()
	ctx := t.Context()
	user, password, _ := strings.Cut(credentials, ":")
	resolver := docker.NewResolver(docker.ResolverOptions{Hosts: config.ConfigureHosts(ctx, config.HostOptions{
		HostDir: config.HostDirFromRoot(hostsDir), DefaultScheme: "http",
		Credentials: func(string) (string, string, error) { return user, password, nil },
	})})
	name, manifest, err := resolver.Resolve(ctx, image)
	if err != nil {
		return fmt.Errorf("resolve: %w", err)
	}
	fetcher, err := resolver.Fetcher(ctx, name)
	if err != nil {
		return err
	}
	body, err := fetcher.Fetch(ctx, manifest)
	if err != nil {
		return fmt.Errorf("manifest: %w", err)
	}
	defer body.Close()
	var m ocispec.Manifest
	if err := json.NewDecoder(body).Decode(&m); err != nil {
		return err
	}
	for _, each := range append([]ocispec.Descriptor{m.Config}, m.Layers...) {
		body, err := fetcher.Fetch(ctx, each)
		if err != nil {
			return fmt.Errorf("blob %s: %w", each.Digest, err)
		}
		err = read(each, body)
		body.Close()
		if err != nil {
			return fmt.Errorf("blob %s: %w", each.Digest, err)
		}
	}
	return nil
}

// whole is a reader of blobs that compares them with the image's.
func whole(image ocitest.Image) func(ocispec.Descriptor, io.Reader) error {
	return func(d ocispec.Descriptor, body io.Reader) error {
		text, err := io.ReadAll(body)
		if err == nil && string(text) != image.Blobs[string(d.Digest)] {
			err = fmt.Errorf("%d bytes, want the %d that were pushed", len(text), d.Size)
		}
		return err
	}
}

func TestImages(t *testing.T) {
	t.Parallel()
	registry := ocitest.Start(t)
	image := registry.Push(t, "acme/app", []string{content("layer 1", 0, 20<<20+7), content("layer 2", 0, 1000)}, puller)
	nodes, dirs := startImageMirrors(t, 3, registry)
	for i, dir := range dirs {
		if err := pull(t, dir, puller, image.Name, whole(image)); err != nil {
			t.Errorf("node %d: %v", i, err)
		}
	}
	for digest, text := range image.Blobs {
		if sent := registry.Sent(digest); sent != int64(len(text)) {
			t.Errorf("the registry sent %d bytes of %s, want %d", sent, digest, len(text))
		}
	}
	if err := pull(t, dirs[0], otherPuller, image.Name, whole(image)); err == nil {
		t.Error("somebody else's pull succeeded")
	}
	registry.Stop()
	for i, dir := range dirs {
		if err := pull(t, dir, puller, image.Name, whole(image)); err != nil {
			t.Errorf("node %d without the registry: %v", i, err)
		}
	}
	if err := pull(t, dirs[0], otherPuller, image.Name, whole(image)); err == nil {
		t.Error("without the registry, somebody else's pull succeeded")
	}
	file := filepath.Join(dirs[0], "_default", "hosts.toml")
	if _, err := os.Stat(file); err != nil {
		t.Error(err)
	}
	nodes[0].stop()
	if _, err := os.Stat(file); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("after the node's end hosts.toml: %v, want none", err)
	}
}

// TestImagesOfARegistryWithTokens pulls through a registry whose tokens come from a server of its own. That server fails first, then both.
func TestImagesOfARegistryWithTokens(t *testing.T) {
	t.Parallel()
	registry := ocitest.StartWithTokens(t)
	private := registry.Push(t, "acme/app", []string{content("layer 1", 0, 20<<20+7), content("layer 2", 0, 1000)}, puller)
	public := registry.Push(t, "library/base", []string{content("layer 3", 0, 9<<20)})
	registry.Push(t, "acme/other", []string{"another layer"}, otherPuller)
	nodes, dirs := startImageMirrors(t, 3, registry)
	all := func(when string) {
		t.Helper()
		for i, dir := range dirs {
			for _, credentials := range []string{puller, otherPuller, ""} {
				if err := pull(t, dir, credentials, public.Name, whole(public)); err != nil {
					t.Errorf("%s, node %d: a public image for %q: %v", when, i, credentials, err)
				}
			}
			if err := pull(t, dir, puller, private.Name, whole(private)); err != nil {
				t.Errorf("%s, node %d: a private image: %v", when, i, err)
			}
			for _, credentials := range []string{otherPuller, "puller:wrong", ""} {
				if err := pull(t, dir, credentials, private.Name, whole(private)); err == nil {
					t.Errorf("%s, node %d: a private image for %q", when, i, credentials)
				}
			}
		}
	}
	all("with the registry")
	for _, image := range []ocitest.Image{private, public} {
		for digest, text := range image.Blobs {
			if sent := registry.Sent(digest); sent != int64(len(text)) {
				t.Errorf("the registry sent %d bytes of %s, want %d", sent, digest, len(text))
			}
		}
	}
	registry.StopRealm()
	all("without the token server")
	registry.Stop()
	all("without the registry")
	var stale float64
	for _, node := range nodes {
		stale += node.series("datacache_mirror_stale_total")
	}
	if stale == 0 {
		t.Error("nothing was served although the registry failed")
	}
}

// TestImagesMirrorDies kills the mirror in the middle of a layer: containerd goes on at the registry.
func TestImagesMirrorDies(t *testing.T) {
	t.Parallel()
	registry := ocitest.Start(t)
	image := registry.Push(t, "acme/app", []string{content("layer 1", 0, 40<<20)}, puller)
	nodes, dirs := startImageMirrors(t, 1, registry)
	killed := false
	err := pull(t, dirs[0], puller, image.Name, func(d ocispec.Descriptor, body io.Reader) error {
		if d.Size < 1<<20 {
			return whole(image)(d, body)
		}
		begin := make([]byte, 1<<20)
		if _, err := io.ReadFull(body, begin); err != nil {
			return err
		}
		nodes[0].kill()
		killed = true
		return whole(image)(d, io.MultiReader(strings.NewReader(string(begin)), body))
	})
	if err != nil || !killed {
		t.Errorf("killed in a layer = %v: %v", killed, err)
	}
	if err := pull(t, dirs[0], puller, image.Name, whole(image)); err != nil { // hosts.toml is still there
		t.Errorf("with a dead mirror: %v", err)
	}
	if err := pull(t, t.TempDir(), puller, image.Name, whole(image)); err != nil {
		t.Errorf("without a mirror: %v", err)
	}
}

// TestImagesRights asks for what the registry would refuse.
func TestImagesRights(t *testing.T) {
	t.Parallel()
	registry := ocitest.Start(t)
	layer := content("layer 1", 0, 9<<20)
	image := registry.Push(t, "acme/app", []string{layer}, puller)
	registry.Push(t, "acme/other", []string{"another layer"}, otherPuller)
	nodes, dirs := startImageMirrors(t, 2, registry)
	if err := pull(t, dirs[0], puller, image.Name, whole(image)); err != nil {
		t.Fatal(err)
	}
	var digest string
	for each, text := range image.Blobs {
		if text == layer {
			digest = each
		}
	}
	clusterToken := strings.Join([]string{
		base64.RawURLEncoding.EncodeToString([]byte(`{"alg": "RS256"}`)), base64.RawURLEncoding.EncodeToString([]byte(`{"kubernetes.io": {"namespace": "a"}}`)), "c2ln",
	}, ".")
	basic := func(credentials string) string {
		return "Basic " + base64.StdEncoding.EncodeToString([]byte(credentials))
	}
	for _, test := range []struct {
		what, target, authorization string
		status                      int
	}{
		{"the blob", "acme/app/blobs/" + digest, basic(puller), http.StatusOK},
		{"a blob for others", "acme/app/blobs/" + digest, basic(otherPuller), http.StatusUnauthorized},
		{"a blob for nobody", "acme/app/blobs/" + digest, "", http.StatusUnauthorized},
		{"another repository's blob", "acme/other/blobs/" + digest, basic(otherPuller), http.StatusNotFound},
		{"a manifest for others", "acme/app/manifests/" + image.Manifest, basic(otherPuller), http.StatusUnauthorized},
		{"another repository's manifest", "acme/other/manifests/" + image.Manifest, basic(otherPuller), http.StatusNotFound},
		{"a tag for others", "acme/app/manifests/v1", basic(otherPuller), http.StatusUnauthorized},
		{"a cluster's token", "acme/app/blobs/" + digest, "Bearer " + clusterToken, http.StatusUnauthorized},
		{"a cluster's token in a pass", "acme/app/blobs/" + digest, "Bearer mirror-0-0-" + clusterToken, http.StatusUnauthorized},
		{"a dotted path", "acme/other/../app/blobs/" + digest, basic(otherPuller), http.StatusNotFound},
		{"an encoded path", "acme/other%2f..%2fapp/blobs/" + digest, basic(otherPuller), http.StatusNotFound},
		{"another registry", "acme/app/blobs/" + digest + "?ns=elsewhere", basic(puller), http.StatusNotFound},
	} {
		for i, node := range nodes {
			if !strings.Contains(test.target, "?") {
				test.target += "?ns=" + registry.Host
			}
			for _, base := range []string{node.mirror(), node.url + "/v1/mirror"} {
				if status, _ := rawWith(t, base, "/v2/"+test.target, test.authorization, ""); status != test.status {
					t.Errorf("%s at node %d: %d, want %d", test.what, i, status, test.status)
				}
			}
		}
	}
	if registry.Saw(clusterToken) {
		t.Error("the registry got the cluster's token")
	}
}
