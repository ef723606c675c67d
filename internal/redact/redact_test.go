// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package redact

import (
	"bytes"
	"fmt"
	"testing"
)

func TestText(t *testing.T) {
	Property("s3.secret-access-key", "wJalrXUtnFEMI/K7MDENG")
	Property("credential", "client:of the tests")
	Property("header.X-Api", "Token of-a-header")
	Property("s3.region", "eu-central-1")
	Hide("", "abc")
	for text, want := range map[string]string{
		"":  "",
		"a": "a",
		"read https://user:pa:ss@w@host/p?x=1: gone":      "read https://***@host/p?x=1: gone",
		"https://:pass@host":                              "https://***@host",
		"read abfss://data@account.dfs.core.windows.net/": "read abfss://data@account.dfs.core.windows.net/",
		"http://host:80/a@b":                              "http://host:80/a@b",
		`"s3://b/k?X-Amz-Signature=abc&X-Amz-Date=1"`:     `"s3://b/k?X-Amz-Signature=***&X-Amz-Date=1"`,
		"https://a/b?sv=1&sig=a%2Fb=&se=2":                "https://a/b?sv=1&sig=***&se=2",
		`{"u":"http://h/?a=1\u0026token=t0p\u0026b=2"}`:   `{"u":"http://h/?a=1\u0026token=***\u0026b=2"}`,
		"Authorization: Bearer eyJhbGciOi.J9-_":           "Authorization: Bearer ***",
		"https://a/b%3Fx=1%26Token=t0p":                   "https://a/b%3Fx=1%26Token=***",
		"proxy-authorization: BASIC dXNlcjpwYXNz":         "proxy-authorization: BASIC ***",
		"signed with wJalrXUtnFEMI/K7MDENG":               "signed with ***",
		"escaped wJalrXUtnFEMI%2FK7MDENG, of the tests":   "escaped ***, ***",
		"of-a-header is one, abc is none, eu-central-1":   "*** is one, abc is none, eu-central-1",
		"the bearer of the message has 3 tokens":          "the bearer of the message has 3 tokens",
	} {
		if got := Text(text); got != want {
			t.Errorf("%q is %q, want %q", text, got, want)
		}
		var out bytes.Buffer
		if n, err := fmt.Fprint(Writer(&out), text); err != nil || n != len(text) || out.String() != want {
			t.Errorf("%q was written as %q, %d bytes, %v", text, out.String(), n, err)
		}
	}
}

// BenchmarkText is about a line of a log without credentials, as most are.
func BenchmarkText(b *testing.B) {
	const line = `time=2026-01-31T12:00:00.000Z level=INFO msg="audit: a reader asked for rows" reader=team-a/default pod=train-node-0-0 ` +
		`client=10.0.0.7 job=team-a/train claimed=train kind=epoch columns="[content label]" filter="label >= 1" rows=2806112` + "\n"
	for b.Loop() {
		Text(line)
	}
}

func TestIsSecret(t *testing.T) {
	for name, want := range map[string]bool{
		"s3.secret-access-key": true, "s3.session-token": true, "token": true, "credential": true, "gcs.oauth2.token": true, "gcs.jsonkey": true,
		"adls.sas-token.account": true, "adls.connection-string.account": true, "adls.account-key": true, "adls.auth.shared-key.account.key": true,
		"adls.client-secret": true, "header.Authorization": true, "AWS_SECRET_ACCESS_KEY": true, "CACHE_SECRET": true, "CATALOG_CREDENTIAL": true,
		"s3.access-key-id": false, "AWS_ACCESS_KEY_ID": false, "s3.region": false, "adls.account-name": false, "adls.client-id": false,
		"adls.auth.shared-key.account.name": false, "OBJECT_CACHE_TOKEN_FILE": false, "s3.endpoint": false,
	} {
		if got := IsSecret(name); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}
