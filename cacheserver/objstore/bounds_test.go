// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// serviceAccount returns the credentials of a service account whose tokens a server issues.
func serviceAccount(t *testing.T, server string) string {
	t.Helper()
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(map[string]string{
		"type": "service_account", "client_email": "a@b", "token_uri": server,
		"private_key": string(pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})),
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestTokenServers asks misbehaving servers for tokens: no other host gets a request, and no answer is waited for without end.
func TestTokenServers(t *testing.T) {
	other := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		text, _ := io.ReadAll(r.Body)
		t.Errorf("another host got %s %s with %q and %q", r.Method, r.URL, r.Header, text)
	}))
	t.Cleanup(other.Close)
	var answer atomic.Pointer[http.HandlerFunc] // of the current test
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // the context ends with the connection only after that
		(*answer.Load())(w, r)
	}))
	t.Cleanup(server.Close)
	t.Setenv("IDENTITY_ENDPOINT", server.URL+"/token") // Azure's managed identity of an app
	t.Setenv("IDENTITY_HEADER", "secret")
	redirect := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, other.URL, status) }
	}
	const elsewhere = "which gets no credentials"
	for name, test := range map[string]struct {
		answer http.HandlerFunc
		want   string
	}{
		"redirects by 302": {redirect(302), elsewhere},
		"redirects by 307": {redirect(307), elsewhere},
		"is silent":        {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, ""},
		"drips": {func(w http.ResponseWriter, r *http.Request) {
			for r.Context().Err() == nil {
				_, _ = io.WriteString(w, " ")
				_ = http.NewResponseController(w).Flush() // the context ends once the client has left
				time.Sleep(10 * time.Millisecond)         //nolint:forbidigo // it drips
			}
		}, ""},
		"quotes a book": {func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, strings.Repeat("no\n", 1<<16))
		}, "403"},
	} {
		answer.Store(&test.answer)
		for uri, cfg := range map[string]Config{
			"gs://box/key": {GCS: GCS{Endpoint: server.URL, CredentialsJSON: serviceAccount(t, server.URL+"/token")}},
			"abfss://box@acct.dfs.core.windows.net/key": {Azure: Azure{ManagedIdentity: true}},
		} {
			t.Run(name+" "+uri, func(t *testing.T) {
				cfg.StallTimeout, cfg.Retry.Attempts = 200*time.Millisecond, 1
				_, err := New(cfg).Open(t.Context(), uri)
				if strings.HasPrefix(uri, "abfss:") {
					test.want = "" // the SDK asks again, for longer than StallTimeout
				}
				if err == nil || !strings.Contains(err.Error(), test.want) || strings.Contains(err.Error(), "\n") || len(err.Error()) > 2*maxQuoted {
					t.Errorf("the error %q should be one short line with %q", err, test.want)
				}
			})
		}
	}
}

// TestAnswersAreBounded reads lists and errors that have no end.
func TestAnswersAreBounded(t *testing.T) {
	var sent atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, status := "<Error>", http.StatusForbidden
		if strings.Contains(r.URL.RawQuery, "list") {
			text, status = "<Contents><Key>folder/"+strings.Repeat("x", 1000)+"</Key><Size>1</Size></Contents>", http.StatusOK
		}
		w.WriteHeader(status)
		if r.Method == http.MethodHead {
			return
		}
		_, _ = io.WriteString(w, "<ListBucketResult>")
		block := bytes.Repeat([]byte(text), 1+1<<16/len(text))
		for sent.Load() < 16*pageLimit {
			n, err := w.Write(block)
			sent.Add(int64(n))
			if err != nil {
				return
			}
		}
	}))
	t.Cleanup(server.Close)
	cfg := Config{
		S3:    S3{Endpoint: server.URL, AccessKeyID: "a", SecretAccessKey: "b"},
		GCS:   GCS{Endpoint: server.URL, Anonymous: true},
		Azure: Azure{Endpoint: server.URL, Anonymous: true},
		Retry: Retry{Attempts: 1},
	}
	for _, uri := range []string{"s3://box/folder", "gs://box/folder", "abfss://box@acct.dfs.core.windows.net/folder"} {
		s := New(cfg)
		for what, ask := range map[string]func() error{
			"list": func() error {
				for _, err := range s.List(t.Context(), uri) {
					if err != nil {
						return err
					}
				}
				return nil
			},
			"error": func() error { _, err := s.Open(t.Context(), uri); return err },
		} {
			sent.Store(0)
			if err := ask(); err == nil || !strings.Contains(err.Error(), uri) {
				t.Errorf("%s of %s: %v, want an error that names it", what, uri, err)
			}
			if n := sent.Load(); n > 2*pageLimit {
				t.Errorf("%s of %s: %d MB were read, want about %d", what, uri, n>>20, pageLimit>>20)
			}
		}
		s.Idle()
	}
}

// TestHubInPlainText has a hub with TLS redirect to a server without.
func TestHubInPlainText(t *testing.T) {
	plain := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { t.Errorf("asked in plain text: %s", r.URL) }))
	t.Cleanup(plain.Close)
	hub := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { http.Redirect(w, r, plain.URL, http.StatusFound) }))
	t.Cleanup(hub.Close)
	authority := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(authority, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: hub.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := New(Config{CAFile: authority, Hub: Hub{Endpoint: hub.URL, Token: "secret"}}).Open(t.Context(), "hf://owner/name/key")
	checkError(t, err, errProtocol, []string{hub.URL, "redirects", plain.URL[len("http://"):]})
}

// TestRepeatedPage lists a folder whose second page names itself as the next one.
func TestRepeatedPage(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, `<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>n</NextContinuationToken></ListBucketResult>`)
	}))
	t.Cleanup(server.Close)
	s := New(Config{GCS: GCS{Endpoint: server.URL, Anonymous: true}})
	var last error
	for _, err := range s.List(t.Context(), "gs://box/folder") {
		last = err
	}
	checkError(t, last, errProtocol, []string{"gs://box/folder", `page "n" of the list names itself`})
}
