// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"bytes"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kubeflow/datacache/internal/origin"
)

// azureServer imitates Azure's blob service with one blob: it has no suffix ranges and sends error codes in a header.
type azureServer struct {
	*httptest.Server
	blob     []byte
	tag      string
	requests []string
	auth     string
}

func startAzure(t *testing.T, blob []byte) *azureServer {
	a := &azureServer{blob: blob, tag: `"0x1"`}
	a.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rng := r.Header.Get("X-Ms-Range")
		a.requests = append(a.requests, strings.TrimSpace(r.Method+" "+rng))
		a.auth, _, _ = strings.Cut(r.Header.Get("Authorization"), ":")
		if r.URL.RawQuery != "" {
			a.auth = r.URL.RawQuery
		}
		if r.URL.Path != "/acct/box/dir/a b%2F.parquet" {
			w.Header().Set("X-Ms-Error-Code", "BlobNotFound")
			w.WriteHeader(http.StatusNotFound)
			return
		}
		if m := r.Header.Get("If-Match"); m != "" && m != a.tag {
			w.Header().Set("X-Ms-Error-Code", "ConditionNotMet")
			w.WriteHeader(http.StatusPreconditionFailed)
			return
		}
		r.Header.Del("If-Match")
		setUnlessEmpty(r.Header, "Range", rng)
		w.Header().Set("ETag", a.tag)
		http.ServeContent(w, r, "", fixedTime, bytes.NewReader(a.blob))
	}))
	t.Cleanup(a.Close)
	return a
}

const azureURI = "abfss://box@acct.dfs.core.windows.net/dir/a b%2F.parquet"

func TestAzure(t *testing.T) {
	tests := []struct {
		name string
		size int
		want []string
	}{
		{"empty", 0, []string{"HEAD", "GET"}},
		{"smaller than the tail", 999, []string{"HEAD", "GET bytes=0-998"}},
		{"longer", 5000, []string{"HEAD", "GET bytes=4000-4999", "GET bytes=0-3999"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			data := pattern(tt.size)
			srv := startAzure(t, data)
			s := New(Config{TailBytes: 1000, Azure: Azure{Endpoint: srv.URL, Anonymous: true}})
			defer s.Idle()
			got, err := s.ReadAtMost(t.Context(), azureURI, 1<<30)
			if err != nil || !bytes.Equal(got, data) {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
			if d := cmp.Diff(tt.want, srv.requests); d != "" {
				t.Errorf("requests (-want +got):\n%s", d)
			}
			if st := s.Stats(); st.Requests != int64(len(tt.want)) {
				t.Errorf("stats %+v, want %d requests", st, len(tt.want))
			}
		})
	}
}

func TestAzureErrors(t *testing.T) {
	srv := startAzure(t, data)
	s := New(Config{TailBytes: 1000, Azure: Azure{Endpoint: srv.URL, Anonymous: true}})
	defer s.Idle()
	f := open(t, s, azureURI)
	srv.tag = `"0x2"`
	_, err := f.ReadAt(make([]byte, 10), 0)
	checkError(t, err, ErrChanged, []string{"412 ConditionNotMet"})
	_, err = s.Open(t.Context(), "abfss://box@acct.dfs.core.windows.net/gone")
	checkError(t, err, fs.ErrNotExist, []string{"404 BlobNotFound"})
	_, err = s.Open(t.Context(), "abfss://box/gone")
	checkError(t, err, nil, []string{"no account: write abfss://box@account"})
}

func TestAzureCredentials(t *testing.T) {
	key := "c2VjcmV0" // base64 of "secret"
	tests := []struct {
		name string
		cfg  Azure
		uri  string
		want string
	}{
		{name: "shared key", cfg: Azure{Account: "acct", Key: key}, want: "SharedKey acct"},
		{name: "shared key, account of the configuration", cfg: Azure{Account: "acct", Key: key},
			uri: "abfs://box/dir/a b%2F.parquet", want: "SharedKey acct"},
		{name: "SAS of the account", cfg: Azure{SASTokens: map[string]string{"acct": "?sig=1"}}, want: "sig=1"},
		{name: "SAS of any account", cfg: Azure{SASTokens: map[string]string{"": "sig=2"}}, want: "sig=2"},
		{name: "key of another account is not sent", cfg: Azure{Account: "other", Key: key, SASTokens: map[string]string{"": "sig=3"}}, want: "sig=3"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			srv := startAzure(t, data)
			cfg := tt.cfg
			cfg.Endpoint = srv.URL
			s := New(Config{Azure: cfg})
			defer s.Idle()
			uri := tt.uri
			if uri == "" {
				uri = azureURI
			}
			if got, err := s.ReadAtMost(t.Context(), uri, 1<<30); err != nil || !bytes.Equal(got, data) {
				t.Fatalf("%d bytes, %v", len(got), err)
			}
			if srv.auth != tt.want {
				t.Errorf("authorised by %q, want %q", srv.auth, tt.want)
			}
		})
	}
}

// TestAzureTokensGoToAzure opens an object whose URI, as a table's files may have it, names a server that isn't Azure's.
func TestAzureTokensGoToAzure(t *testing.T) {
	for name, cfg := range map[string]Azure{
		"identity": {TenantID: "t", ClientID: "c", ClientSecret: "s"},
		"SAS":      {SASTokens: map[string]string{"": "sig=1"}},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(Config{Azure: cfg}).Open(t.Context(), "abfss://box@acct.elsewhere.example/o")
			checkError(t, err, origin.ErrElsewhere, []string{"acct.elsewhere.example is no server of Azure's storage", "adls.endpoint"})
		})
	}
}

func TestAzureSecretsStayOutOfErrors(t *testing.T) {
	srv := startAzure(t, data)
	s := New(Config{Retry: Retry{Attempts: 1}, Azure: Azure{Endpoint: srv.URL, SASTokens: map[string]string{"": "sig=topsecret"}}})
	srv.Close()
	_, err := s.Open(t.Context(), azureURI)
	checkError(t, err, syscall.ECONNREFUSED, []string{"read " + azureURI, "connection refused"})
	if strings.Contains(err.Error(), "topsecret") {
		t.Error("the SAS token is in the error")
	}
}

func TestAzureConnectionString(t *testing.T) {
	srv := startAzure(t, data)
	connection := "DefaultEndpointsProtocol=http;AccountName=acct;AccountKey=c2VjcmV0;BlobEndpoint=" + srv.URL + "/acct;"
	s := New(Config{Azure: Azure{ConnectionStrings: map[string]string{"acct": connection}}})
	defer s.Idle()
	if got, err := s.ReadAtMost(t.Context(), azureURI, 1<<30); err != nil || !bytes.Equal(got, data) {
		t.Fatalf("%d bytes, %v", len(got), err)
	}
}

func TestAzureURL(t *testing.T) {
	tests := []struct {
		name, host, endpoint, want string
		protocol                   string
	}{
		{"data lake", "acct.dfs.core.windows.net", "", "https://acct.blob.core.windows.net", ""},
		{"blob", "acct.blob.core.windows.net", "", "https://acct.blob.core.windows.net", ""},
		{"another cloud", "acct.dfs.core.chinacloudapi.cn", "", "https://acct.blob.core.chinacloudapi.cn", ""},
		{"container only", "", "", "https://mine.blob.core.windows.net", ""},
		{"emulator", "acct.dfs.core.windows.net", "http://127.0.0.1:10000/", "http://127.0.0.1:10000/acct", ""},
		{"emulator by name", "acct.dfs.core.windows.net", "http://localhost:10000", "http://localhost:10000/acct", ""},
		{"private domain", "acct.dfs.core.windows.net", "blob.example.org", "https://acct.blob.example.org", ""},
		{"emulator without TLS", "acct.dfs.core.windows.net", "127.0.0.1:10000", "http://127.0.0.1:10000/acct", "http"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := Azure{Account: "mine", Endpoint: tt.endpoint, Protocol: tt.protocol}
			account, domain, err := azureAccount(cfg, location{bucket: "box", host: tt.host})
			if err != nil {
				t.Fatal(err)
			}
			if got := azureURL(cfg, account, domain); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}
