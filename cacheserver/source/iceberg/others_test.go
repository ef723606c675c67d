// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	ice "github.com/apache/iceberg-go"
	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/test/kit/icetest"
	"github.com/kubeflow/datacache/test/kit/s3test"
)

// shippingPlanner is a process that plans files: what it gets and answers is encoded.
type shippingPlanner struct {
	source.FilePlanner
	t     *testing.T
	plans atomic.Int64
}

func (p *shippingPlanner) PlanFiles(ctx context.Context, files []source.Split) ([]source.Split, error) {
	splits, err := p.FilePlanner.PlanFiles(ctx, encoded(p.t, files))
	p.plans.Add(1)
	return encoded(p.t, splits), err
}

func encoded(t *testing.T, splits []source.Split) []source.Split {
	out, err := source.DecodeSplits(source.EncodeSplits(splits))
	if err != nil {
		t.Error(err)
	}
	return out
}

// brokenPlanner is a process that fails.
type brokenPlanner struct{}

func (brokenPlanner) PlanFiles(context.Context, []source.Split) ([]source.Split, error) {
	return nil, errors.New("broken")
}

// TestOthersPlanFiles plans a table of 600 files with two other processes, of which one fails, while this process waits for its first
// footers: the plan is the same as without others, with and without a filter, and each footer is read once.
func TestOthersPlanFiles(t *testing.T) {
	const files, chunk = 600, 256
	server := s3test.Start(t)
	made := icetest.OnS3(t, server, "lake").Plain("t", 2, 1, 100, 40)
	direct := s3Store(t, server)
	metadata := copies(t, server, made, direct, files-1)

	target, err := url.Parse(server.URL())
	if err != nil {
		t.Fatal(err)
	}
	forward := httputil.NewSingleHostReverseProxy(target)
	for _, filter := range []string{"", "id < 60"} {
		t.Run(fmt.Sprintf("filter %q", filter), func(t *testing.T) {
			helped := make(chan struct{}) // closed when the others have done what this process has not begun
			var footers atomic.Int64      // footers read by this process
			proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if strings.HasSuffix(r.URL.Path, ".parquet") {
					footers.Add(1)
					<-helped
				}
				forward.ServeHTTP(w, r)
			}))
			defer proxy.Close()
			here := objstore.New(objstore.Config{S3: objstore.S3{Endpoint: proxy.URL, Region: s3test.Region, AccessKeyID: "k", SecretAccessKey: "s"}})
			defer here.Idle()
			location, selection := Location{Metadata: metadata}, Selection{Filter: filter}
			want, err := (&Source{Store: direct, Location: location, Selection: selection}).Plan(t.Context(), nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			good := &shippingPlanner{t: t}
			others := func(ctx context.Context, v source.Version, work func(source.FilePlanner)) {
				opened, err := (&Source{Store: direct, Location: location}).Open(ctx, v, &source.Buffers{})
				if err != nil {
					t.Error(err)
					return
				}
				good.FilePlanner = opened.(source.FilePlanner)
				work(brokenPlanner{})
				work(good)
				close(helped)
			}
			var told [2]int
			progress := func(done, total int) { told = [2]int{done, total} }
			got, err := (&Source{Store: here, Location: location, Selection: selection}).Plan(t.Context(), nil, &source.Planning{Others: others, Progress: progress})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("plans differ (-alone +with others):\n%.2000s", diff)
			}
			if n := footers.Load() + chunk*good.plans.Load(); good.plans.Load() < 2 || n != 3*chunk || told != [2]int{files, files} {
				t.Errorf("%d footers were read here, the other planned %d chunks of 3; progress %v of %d files", footers.Load(), good.plans.Load(), told, files)
			}
		})
	}
}

// copies adds n copies of a table's data file to it and returns the new metadata file.
func copies(t *testing.T, server *s3test.Server, made *icetest.Table, store *objstore.Store, n int) (metadata string) {
	t.Helper()
	tbl, err := Open(t.Context(), store, Location{Metadata: made.Metadata()}, Selection{})
	if err != nil {
		t.Fatal(err)
	}
	splits := planOf(t, tbl)
	data := server.Get("lake", strings.TrimPrefix(splits[0].File, "s3://lake/"))
	var all []ice.DataFile
	for i := range n {
		uri := server.Put("lake", fmt.Sprintf("copies/%04d.parquet", i), data)
		b, err := ice.NewDataFileBuilder(made.Iceberg().Spec(), ice.EntryContentData, uri, ice.ParquetFile, nil, nil, nil, rowsIn(splits), int64(len(data)))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b.Build())
	}
	tx := made.Iceberg().NewTransaction()
	if err := tx.AddDataFiles(t.Context(), all, nil); err != nil {
		t.Fatal(err)
	}
	after, err := tx.Commit(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return after.MetadataLocation()
}

// rowsIn is the number of rows of the splits of one file.
func rowsIn(splits []source.Split) (n int64) {
	for _, s := range splits {
		n += s.Rows
	}
	return n
}
