// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/kubeflow/datacache/test/kit/deadline"
	"github.com/kubeflow/datacache/test/kit/proctest"
)

// The credentials passed to a process in TestSecretsAreNotShown.
var credentials = []string{
	"PASSWORD-of-uri", "TOKEN-of-property", "SECRET-of-credential", "SECRET-of-s3", "TOKEN-of-session", "SIGNATURE-of-query",
	"VALUE-of-header", "SECRET-of-the-cache", "SECRET-of-environment", "SAS-of-azure", "PASSWORD-of-object-cache",
}

// TestSecretsAreNotShown passes a head credentials in every possible way, with a catalog that rejects, is unavailable, or echoes
// everything it receives, and searches all output of the head for them.
func TestSecretsAreNotShown(t *testing.T) {
	t.Parallel()
	for name, answer := range map[string]http.HandlerFunc{
		"401 that repeats the request": func(w http.ResponseWriter, r *http.Request) {
			body, _ := io.ReadAll(r.Body)
			w.WriteHeader(http.StatusUnauthorized)
			fmt.Fprintf(w, `{"error": {"message": %q, "type": "NotAuthorizedException", "code": 401}}`, fmt.Sprint(r.URL, r.Header, string(body)))
		},
		"500 that is no JSON": func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprint(w, r.URL, r.Header)
		},
		"no answer": func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
	} {
		t.Run(name, func(t *testing.T) {
			var asked atomic.Int64
			catalog := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				answer(w, r)
			}))
			defer catalog.Close()
			for _, login := range []string{"token=TOKEN-of-property", "credential=client:SECRET-of-credential"} {
				shows := headWithSecrets(t, strings.TrimPrefix(catalog.URL, "http://"), login)
				if asked.Load() == 0 {
					t.Error("the catalog was not asked")
				}
				for _, secret := range credentials {
					if at := strings.Index(shows, secret); at >= 0 {
						t.Errorf("%s is shown: %s", secret, shows[max(0, at-200):at+len(secret)])
					}
				}
				if !strings.Contains(shows, "***") {
					t.Errorf("nothing was taken out of:\n%s", shows)
				}
			}
		})
	}
}

// headWithSecrets runs a head until it has reported an error of the catalog, and returns all its output.
func headWithSecrets(t *testing.T, catalog, login string) string {
	t.Helper()
	env := []string{
		"CACHE_SECRET=SECRET-of-the-cache", "CATALOG_CREDENTIAL=x:SECRET-of-environment", "AWS_SESSION_TOKEN=TOKEN-of-session",
		"OBJECT_CACHE=http://u:PASSWORD-of-object-cache@127.0.0.1:1", "OBJECT_CACHE_BUCKET=blocks", "OBJECT_CACHE_TOKEN_FILE=/dev/null",
	}
	args := []string{
		"--catalog-uri", "http://user:PASSWORD-of-uri@" + catalog + "/x?sig=SIGNATURE-of-query", "--schema-name", "db", "--table-name", "t",
		"--property", login, "--property", "s3.secret-access-key=SECRET-of-s3,s3.access-key-id=id",
		"--property", "header.X-Key=VALUE-of-header", "--property", "adls.sas-token.account=SAS-of-azure",
		"--log-level", "debug",
	}
	address, web := proctest.FreeAddress(t), proctest.FreeAddress(t)
	p := start(t, "head", web, env, append([]string{"head", "--nodes", "1", "--listen", address, "--http", web}, args...)...)
	deadline.Eventually(t, func() error { // the reason of a failure, or of a retry
		if text := fetched(t, "http://"+web+"/status"); !strings.Contains(text, "catalog:") && !strings.Contains(text, "the catalog") {
			return fmt.Errorf("the status tells nothing of the catalog: %s", text)
		}
		return nil
	})
	var shows strings.Builder
	for _, path := range []string{"/status", "/ready", "/metrics"} {
		shows.WriteString(fetched(t, "http://"+web+path))
	}
	ctx := deadline.Context(t)
	conn, err := dial(ctx, address)
	if err != nil {
		t.Fatal(err)
	}
	client := flight.NewClientFromConn(conn, nil)
	_, err = client.GetFlightInfo(ctx, shardOf(0, 1))
	fmt.Fprintln(&shows, err)
	stream, err := client.DoAction(ctx, &flight.Action{Type: "status"})
	if err != nil {
		t.Fatal(err)
	}
	result, err := stream.Recv()
	if err != nil {
		t.Fatal(err)
	}
	shows.Write(result.Body)
	p.kill()
	shows.WriteString(p.output.String())
	// Commands that end: a failing plan, a wrong flag, and the help, which shows values from the environment.
	for _, ends := range [][]string{
		append([]string{"inspect"}, args[:len(args)-2]...), append([]string{"head", "--no-such-flag"}, args...), {"head", "--help"},
		{"head", "--property", "s3.secret-access-key=SECRET-of-s3,oops"},
	} {
		cmd := exec.CommandContext(deadline.Context(t), binary, ends...)
		cmd.Env = append(env, "CATALOG_URI=http://user:PASSWORD-of-uri@host/?sig=SIGNATURE-of-query")
		out, _ := cmd.CombinedOutput() // only the output matters, not the exit code
		shows.Write(out)
	}
	return shows.String()
}

func fetched(t *testing.T, url string) string {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		return ""
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}
