// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/kubeflow/datacache/internal/identity"
	"github.com/kubeflow/datacache/objectcache/buckets"
	"github.com/kubeflow/datacache/objectcache/router"
	"github.com/kubeflow/datacache/objectcache/serve"
	"github.com/kubeflow/datacache/objectcache/store"
)

func TestAnObjectCache(t *testing.T) {
	config := buckets.Config{TotalLimit: 1 << 24, Buckets: map[string]buckets.Bucket{
		"scratch": {Name: "scratch", Public: true, Quota: 1 << 20},
		"compile": {Name: "compile", Public: true, Quota: 1 << 22},
	}}
	quotas := map[string]int64{}
	for name, b := range config.Buckets {
		quotas[name] = b.Quota
	}
	objects, err := store.Open(store.Config{Dir: t.TempDir(), Limits: store.Limits{Total: config.TotalLimit, Quotas: quotas}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { objects.Close() }) // runs after the server has stopped
	tokens, err := identity.ParseTokens([]byte("some-secret team-a\n"))
	if err != nil {
		t.Fatal(err)
	}
	server := serve.New(serve.Config{
		Store: objects, Router: router.New("machine-1"), Grace: time.Second, Log: slog.New(slog.DiscardHandler),
		Reviewer: identity.Static(func() identity.Tokens { return tokens }),
		Buckets:  func() buckets.Config { return config }, BucketsRejected: func() bool { return false },
	})
	web, data := listen(t), listen(t)
	run(t, func(ctx context.Context) error { return server.ServeOps(ctx, web) })
	run(t, func(ctx context.Context) error { return server.Serve(ctx, data) })

	b := open(t)
	b.goTo("http://" + web.Addr().String())
	b.await("#state", "Waiting", "starting")
	server.Open()
	b.await("#state", "Ready")
	put := func(method, key string, status int) {
		t.Helper()
		request, err := http.NewRequestWithContext(t.Context(), method, "http://"+data.Addr().String()+"/v1/objects/"+key, strings.NewReader("some bytes"))
		if err != nil {
			t.Fatal(err)
		}
		request.Header.Set("Authorization", "Bearer some-secret")
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		defer response.Body.Close()
		if response.StatusCode != status {
			t.Fatalf("%s %s: %s, want %d", method, key, response.Status, status)
		}
	}
	put(http.MethodPut, "scratch/a", http.StatusCreated)
	put(http.MethodGet, "scratch/a", http.StatusOK)
	put(http.MethodGet, "scratch/b", http.StatusNotFound)
	b.await("#tables", "scratch", "compile", "50 %")
	b.await("#meters", "of 16.0 MiB")
	b.accessible("object cache")
}
