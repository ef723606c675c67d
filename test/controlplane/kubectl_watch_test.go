// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/test/kit/kubetest"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

// changed is a line that status -w adds to the status.
var changed = regexp.MustCompile(`(?m)^\d\d:\d\d:\d\d (.*)$`)

// changes returns the lines that status -w has printed after the status, without their times.
func changes(process *proctest.Process) []string {
	var lines []string
	for _, match := range changed.FindAllStringSubmatch(process.Output.String(), -1) {
		lines = append(lines, match[1])
	}
	return lines
}

// TestKubectlStatusWatch checks that status -w prints each change of a cache until it is deleted, although the API server ends its watches
// and has forgotten the version at which one begins, and although the cache is deleted while there is no watch.
func TestKubectlStatusWatch(t *testing.T) {
	t.Parallel()
	ns := cluster.Namespace(t)
	cluster.Kubelet.Play(ns, func(*corev1.Pod) kubetest.Act { return kubetest.Act{Unready: true} }) // Ready only when a head says so
	dc := byHand(ns)
	cluster.Create(t, dc)
	kubetest.Eventually(t, "the manager to look at the cache", func() error {
		return errors.Join(cluster.Client.Get(t.Context(), client.ObjectKeyFromObject(dc), dc), lacks(string(dc.Status.State), []string{"Pending"}))
	})
	p := pluginFor(t, ns)
	plain := p.start("status reviews --watch")

	// The first watch begins at a version that the API server does not have, and the second one ends at once.
	var watches atomic.Int64
	cut := p.through(func(r *http.Request) {
		query := r.URL.Query()
		if query.Get("watch") == "" {
			return
		}
		switch watches.Add(1) {
		case 1:
			query.Set("resourceVersion", "1")
		case 2:
			query.Set("timeoutSeconds", "1")
		}
		r.URL.RawQuery = query.Encode()
	}).start("status reviews -w")

	// The only watch ends before the cache is deleted, and the next request comes after that.
	deleted, requests := make(chan struct{}), atomic.Int64{}
	late := p.through(func(r *http.Request) {
		if !strings.Contains(r.URL.Path, "/datacaches") {
			return
		}
		switch requests.Add(1) {
		case 2:
			query := r.URL.Query()
			query.Set("timeoutSeconds", "1")
			r.URL.RawQuery = query.Encode()
		case 3:
			select {
			case <-deleted:
			case <-r.Context().Done():
			}
		}
	}).start("status reviews -w")

	all := []*proctest.Process{plain, cut, late}
	for _, process := range all {
		kubetest.Eventually(t, process.Name, func() error {
			return lacks(process.Output.String(), []string{"cache       " + ns + "/reviews\n", "state       Pending: ", "table       demo.reviews\n"})
		})
	}
	kubetest.Eventually(t, "a third watch", func() error {
		if n := watches.Load(); n < 3 {
			return fmt.Errorf("there were %d", n)
		}
		return nil
	})
	kubetest.Eventually(t, "the request after the only watch", func() error {
		if n := requests.Load(); n < 3 {
			return fmt.Errorf("there were %d requests", n)
		}
		return nil
	})
	served(t, ns, "reviews")
	const ready = "Ready: Loaded: all 1000 rows are in memory"
	for _, process := range all[:2] {
		kubetest.Eventually(t, "the change", func() error { return lacks(strings.Join(changes(process), "\n"), []string{ready}) })
	}
	interrupt(t, plain)
	cluster.Delete(t, dc)
	cluster.Vanish(t, &v1alpha1.DataCache{}, ns, "reviews")
	close(deleted)
	for _, process := range all[1:] {
		if code := process.Exit(); code != 0 {
			t.Errorf("%s ends with %d after the cache was deleted", process.Name, code)
		}
		got := changes(process)
		if len(got) == 0 || got[len(got)-1] != "deleted" || len(slices.Compact(slices.Clone(got))) != len(got) {
			t.Errorf("it says %q, want each change once, and deleted at the end", got)
		}
	}
	if n := watches.Load(); n != 3 {
		t.Errorf("there were %d watches, want no more than needed: 3", n)
	}
}

// through returns the plugin for a proxy in front of the API server, which calls change with each request before it passes it on.
func (p *kubectlPlugin) through(change func(*http.Request)) *kubectlPlugin {
	p.t.Helper()
	config, err := cluster.ConfigFor("admin", "system:masters")
	if err != nil {
		p.t.Fatal(err)
	}
	transport, err := rest.TransportFor(config)
	if err != nil {
		p.t.Fatal(err)
	}
	to, err := url.Parse(config.Host)
	if err != nil {
		p.t.Fatal(err)
	}
	proxy := httptest.NewServer(&httputil.ReverseProxy{
		Transport: transport, FlushInterval: -1,
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(to)
			change(r.Out)
		},
	})
	p.t.Cleanup(proxy.Close)
	const name = "proxy"
	file := filepath.Join(p.t.TempDir(), "kubeconfig")
	err = clientcmd.WriteToFile(clientcmdapi.Config{
		CurrentContext: name,
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, Namespace: p.namespace}},
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: proxy.URL}},
	}, file)
	if err != nil {
		p.t.Fatal(err)
	}
	return &kubectlPlugin{t: p.t, program: p.program, kubeconfig: file, namespace: p.namespace}
}
