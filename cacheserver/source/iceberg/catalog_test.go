// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/test/kit/icetest"
	"github.com/kubeflow/datacache/test/kit/s3test"
)

// restCatalog is a server with one table, db.inner.t, of warehouse "wh", for clients with the token "secret".
type restCatalog struct {
	metadata    string // its location
	content     []byte
	overrides   map[string]string
	config      map[string]string
	credentials []credential
}

func (c restCatalog) start(t *testing.T) string {
	t.Helper()
	mux := http.NewServeMux()
	reply := func(w http.ResponseWriter, v any) {
		w.Header().Set("Content-Type", "application/json")
		if err := json.NewEncoder(w).Encode(v); err != nil {
			t.Error(err)
		}
	}
	mux.HandleFunc("GET /v1/config", func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Get("warehouse") != "wh" {
			t.Errorf("warehouse %q was asked for", r.URL.Query().Get("warehouse"))
		}
		reply(w, map[string]any{"defaults": map[string]string{"s3.region": "nowhere"}, "overrides": c.overrides})
	})
	mux.HandleFunc("GET /v1/namespaces/{namespace}/tables/{table}", func(w http.ResponseWriter, r *http.Request) {
		if r.PathValue("namespace") != "db\x1finner" || r.PathValue("table") != "t" {
			w.WriteHeader(http.StatusNotFound)
			reply(w, map[string]any{"error": map[string]any{"message": "no such table", "type": "NoSuchTableException", "code": 404}})
			return
		}
		reply(w, map[string]any{"metadata-location": c.metadata, "metadata": json.RawMessage(c.content), "config": c.config, "storage-credentials": c.credentials})
	})
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer secret" || r.Header.Get("X-Team") != "blue" {
			w.WriteHeader(http.StatusUnauthorized)
			reply(w, map[string]any{"error": map[string]any{"message": "who are you", "type": "NotAuthorizedException", "code": 401}})
			return
		}
		mux.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

func catalogSource(uri string) Location {
	return Location{CatalogURI: uri, Warehouse: "wh", Namespace: "db.inner", Table: "t", Properties: map[string]string{"token": "secret", "header.X-Team": "blue"}}
}

func TestCatalog(t *testing.T) {
	server := s3test.Start(t)
	made := icetest.OnS3(t, server, "lake").Plain("t", 2, 2, 50, 16)
	keys := server.Properties()
	part := func(names ...string) map[string]string {
		out := map[string]string{}
		for _, n := range names {
			out[n] = keys[n]
		}
		return out
	}
	const id, secret = "s3.access-key-id", "s3.secret-access-key"
	c := restCatalog{
		metadata:  made.Metadata(),
		content:   server.Get("lake", made.Metadata()[len("s3://lake/"):]),
		overrides: part("s3.endpoint"),
		config:    part("s3.region", "s3.path-style-access"),
		credentials: []credential{
			{Prefix: "s3://", Config: map[string]string{id: "wrong", secret: "wrong"}},
			{Prefix: "s3://lake/", Config: part(id, secret)},
			{Prefix: "s3://other/", Config: map[string]string{"s3.endpoint": "http://127.0.0.1:1"}},
		},
	}
	src := catalogSource(c.start(t))
	tbl, err := Open(t.Context(), newStore(), src, Selection{})
	if err != nil {
		t.Fatal(err)
	}
	splits := check(t, tbl, made.Rows())
	if tbl.Pin().MetadataLocation != made.Metadata() {
		t.Errorf("pinned %+v, want %s", tbl.Pin(), made.Metadata())
	}
	made.Append(icetest.PlainRows(500, 510)...) // later commits don't change the pin
	node, err := OpenPinned(t.Context(), newStore(), src, tbl.Pin(), Selection{})
	if err != nil {
		t.Fatal(err)
	}
	if n := rowsOf(readAll(t, node, splits)); n != 100 {
		t.Errorf("%d rows by the pin, want 100", n)
	}
}

func TestCatalogErrors(t *testing.T) {
	made := icetest.Local(t).Plain("t", 2, 1, 5, 16)
	good := restCatalog{metadata: made.Metadata(), content: readFile(t, made.Metadata())}
	tests := map[string]struct {
		catalog restCatalog
		change  func(*Location)
		want    []string
	}{
		"unknown table": {good, func(s *Location) { s.Table = "nope" }, []string{"db.inner.nope", "check namespace, table and warehouse"}},
		"bad token":     {good, func(s *Location) { s.Properties["token"] = "wrong" }, []string{"connect to the catalog", "who are you"}},
		"no answer":     {good, func(s *Location) { s.CatalogURI = "http://127.0.0.1:1" }, []string{"127.0.0.1:1", "check its URI"}},
		"no metadata":   {restCatalog{content: good.content}, func(*Location) {}, []string{"names no metadata file"}},
		"another object store": {
			restCatalog{metadata: "gs://b/t/metadata.json", content: good.content, config: map[string]string{"gcs.service.host": "https://elsewhere.example"}},
			func(*Location) {}, []string{`gcs.service.host = "https://elsewhere.example"`, "gets no credentials", "gcs.oauth2.token"},
		},
		"another object store, with the user's token": {
			restCatalog{metadata: "gs://b/t/metadata.json", content: good.content, config: map[string]string{"gcs.endpoint": "https://elsewhere.example"}},
			func(s *Location) { s.Properties["gcs.oauth2.token"] = "own" }, []string{"gcs.endpoint", "gets no credentials"},
		},
		"another object store of Azure": {
			restCatalog{metadata: "abfss://b@a/t/metadata.json", content: good.content, overrides: map[string]string{"adls.endpoint": "elsewhere.example"}},
			func(*Location) {}, []string{`adls.endpoint = "elsewhere.example"`, "gets no credentials", "among the catalog's properties"},
		},
		"bad property": {restCatalog{metadata: good.metadata, content: good.content, config: map[string]string{"s3.path-style-access": "perhaps"}}, func(*Location) {}, []string{"s3.path-style-access", "perhaps"}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			src := catalogSource(tt.catalog.start(t))
			tt.change(&src)
			_, err := Open(t.Context(), newStore(), src, Selection{})
			wantError(t, err, tt.want...)
		})
	}
}

// TestCatalogCredentialsStay has catalogs lead their clients elsewhere: by redirects of each status, and by their configuration. No other server is asked.
func TestCatalogCredentialsStay(t *testing.T) {
	token, credential := map[string]string{"token": "secret-token"}, map[string]string{"credential": "id:secret"}
	configured := func(name string) func(http.ResponseWriter, *http.Request, string) {
		return func(w http.ResponseWriter, r *http.Request, other string) {
			w.Header().Set("Content-Type", "application/json")
			if strings.HasSuffix(r.URL.Path, "/tokens") {
				fmt.Fprint(w, `{"access_token":"secret-token","token_type":"bearer"}`)
				return
			}
			fmt.Fprintf(w, `{"overrides":{%q:%q}}`, name, other)
		}
	}
	type leading struct {
		properties map[string]string
		answer     func(w http.ResponseWriter, r *http.Request, other string)
	}
	tests := map[string]leading{
		"its configuration names another catalog":      {token, configured("uri")},
		"its configuration names another token server": {credential, configured("oauth2-server-uri")},
		"the same by the old name":                     {credential, configured("rest.authorization-url")},
	}
	for _, status := range []int{301, 302, 303, 307, 308} {
		redirect := func(w http.ResponseWriter, r *http.Request, other string) {
			http.Redirect(w, r, other+r.URL.Path, status)
		}
		tests[fmt.Sprintf("%d with a token", status)] = leading{token, redirect}
		tests[fmt.Sprintf("%d with a credential", status)] = leading{credential, redirect}
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				t.Errorf("%s %s was sent to another server, with Authorization %q", r.Method, r.URL, r.Header.Get("Authorization"))
			}))
			t.Cleanup(other.Close)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { tt.answer(w, r, other.URL) }))
			t.Cleanup(server.Close)
			s := &Source{Store: newStore(), Location: Location{CatalogURI: server.URL, Namespace: "db", Table: "t", Properties: tt.properties}}
			_, err := s.Plan(t.Context(), nil, nil)
			wantError(t, err, server.URL+" leads to "+other.URL+", which gets no credentials")
			if got := s.Retry(err); got != source.OnceMended {
				t.Errorf("%v is tried again %v, want %v", err, got, source.OnceMended)
			}
		})
	}
}

// TestCatalogThatStalls has catalogs send nothing, or a byte now and then.
func TestCatalogThatStalls(t *testing.T) {
	const stall = 200 * time.Millisecond
	for name, tt := range map[string]struct {
		pause time.Duration
		want  string
	}{"sends nothing": {time.Hour, "no byte for 200ms"}, "drips": {stall / 10, "the answer is slow: "}} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				for {
					select {
					case <-time.After(tt.pause):
					case <-r.Context().Done():
						return
					}
					fmt.Fprint(w, " ")
					_ = http.NewResponseController(w).Flush() // the context ends once the client has left
				}
			}))
			t.Cleanup(server.Close)
			s := &Source{Store: objstore.New(objstore.Config{StallTimeout: stall}), Location: catalogSource(server.URL)}
			_, err := s.Plan(t.Context(), nil, nil)
			wantError(t, err, "the catalog does not answer", server.URL, tt.want)
			if got := s.Retry(err); got != source.Soon {
				t.Errorf("%v is tried again %v, want %v", err, got, source.Soon)
			}
		})
	}
}

// TestObjectStoreOfTheCatalog accepts the object stores that a catalog names together with credentials, and those that the user names.
func TestObjectStoreOfTheCatalog(t *testing.T) {
	for name, of := range map[string]struct{ own, given map[string]string }{
		"with a token":          {given: map[string]string{"gcs.service.host": "https://h", "gcs.oauth2.token": "t"}},
		"without credentials":   {given: map[string]string{"gcs.service.host": "https://h", "gcs.no-auth": "true"}},
		"that the user names":   {own: map[string]string{"gcs.service.host": "https://h"}},
		"that both name":        {own: map[string]string{"gcs.service.host": "https://h"}, given: map[string]string{"gcs.service.host": "https://h"}},
		"of Amazon's interface": {given: map[string]string{"s3.endpoint": "https://h"}},
		"with nothing to say":   {given: map[string]string{"a": "b"}},
	} {
		t.Run(name, func(t *testing.T) {
			l := &answerRecorder{client: of.own, table: of.given}
			if err := l.keepCredentials(l.properties("gs://b/o")); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestOtherPropertiesKeepTheStore(t *testing.T) {
	store := newStore()
	if same, err := withProperties(store, map[string]string{"token": "x", "write.format": "parquet"}); err != nil || same != store {
		t.Errorf("properties that are not about the store made another: %v", err)
	}
}

func TestWhatACatalogHandsOut(t *testing.T) {
	l := newAnswerRecorder(newStore(), Location{Properties: map[string]string{"a": "client", "b": "client", "c": "client", "d": "client"}})
	l.record([]byte(`{"defaults": {"a": "default", "z": "default"}, "overrides": {"b": "override", "c": "override"}}`))
	l.record([]byte(`not JSON`))
	l.record([]byte(`{"config": {"c": "table", "k": "table"}, "storage-credentials": [
		{"prefix": "s3://", "config": {"k": "general"}},
		{"prefix": "s3://lake/", "config": {"k": "special"}},
		{"prefix": "s3://la", "config": {"k": "less special"}},
		{"prefix": "s3://other/", "config": {"k": "another"}}]}`))
	want := map[string]string{"a": "client", "b": "override", "c": "table", "d": "client", "k": "special", "z": "default"}
	if diff := cmp.Diff(want, l.properties("s3://lake/t/metadata/v1.metadata.json")); diff != "" {
		t.Errorf("properties (-want +got):\n%s", diff)
	}
}
