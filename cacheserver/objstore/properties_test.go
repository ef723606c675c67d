// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWithProperties(t *testing.T) {
	base := Config{
		S3:          S3{Region: "base", AccessKeyID: "base", SecretAccessKey: "base", SessionToken: "base"},
		Concurrency: 7,
	}
	tests := []struct {
		name  string
		props map[string]string
		want  func(c *Config)
	}{
		{name: "nothing", want: func(*Config) {}},
		{name: "strange and empty ones", props: map[string]string{"write.format": "parquet", "s3.region": ""}, want: func(*Config) {}},
		{
			name:  "S3 with a session",
			props: map[string]string{"s3.access-key-id": "k", "s3.secret-access-key": "s", "s3.session-token": "t", "s3.endpoint": "http://e", "s3.path-style-access": "TRUE"},
			want: func(c *Config) {
				c.S3 = S3{Region: "base", AccessKeyID: "k", SecretAccessKey: "s", SessionToken: "t", Endpoint: "http://e", Addressing: "path"}
			},
		},
		{
			name:  "S3 without a session drops the other key's",
			props: map[string]string{"s3.access-key-id": "k", "s3.secret-access-key": "s"},
			want:  func(c *Config) { c.S3 = S3{Region: "base", AccessKeyID: "k", SecretAccessKey: "s"} },
		},
		{name: "client.region", props: map[string]string{"client.region": "c"}, want: func(c *Config) { c.S3.Region = "c" }},
		{name: "s3.region wins", props: map[string]string{"client.region": "c", "s3.region": "s"}, want: func(c *Config) { c.S3.Region = "s" }},
		{name: "virtual addressing", props: map[string]string{"s3.path-style-access": "false"}, want: func(c *Config) { c.S3.Addressing = "virtual" }},
		{name: "forced virtual addressing", props: map[string]string{"s3.force-virtual-addressing": "true"}, want: func(c *Config) { c.S3.Addressing = "virtual" }},
		{
			name:  "GCS",
			props: map[string]string{"gcs.oauth2.token": "t", "gcs.service.host": "http://h", "gcs.no-auth": "true", "gcs.keypath": "/k", "gcs.user-project": "p"},
			want: func(c *Config) {
				c.GCS = GCS{Token: "t", Endpoint: "http://h", Anonymous: true, CredentialsFile: "/k", UserProject: "p"}
			},
		},
		{
			name: "Azure",
			props: map[string]string{
				"adls.auth.shared-key.account.name": "a", "adls.auth.shared-key.account.key": "k",
				"adls.sas-token.acct.dfs.core.windows.net": "s1", "adls.sas-token.two": "s2", "adls.sas-token": "s3",
				"adls.sas-token-expires-at-ms.acct": "12", "adls.connection-string.acct": "c",
				"adls.tenant-id": "t", "adls.client-id": "i", "adls.client-secret": "x",
				"adls.protocol": "http", "adls.endpoint": "127.0.0.1:10000",
			},
			want: func(c *Config) {
				c.Azure = Azure{
					Account: "a", Key: "k", TenantID: "t", ClientID: "i", ClientSecret: "x",
					Protocol: "http", Endpoint: "127.0.0.1:10000",
					SASTokens:         map[string]string{"acct": "s1", "two": "s2", "": "s3"},
					ConnectionStrings: map[string]string{"acct": "c"},
				}
			},
		},
		{
			name:  "signer with a key to spare",
			props: map[string]string{"s3.remote-signing-enabled": "true"},
			want:  func(*Config) {},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := base.WithProperties(tt.props)
			if err != nil {
				t.Fatal(err)
			}
			want := base
			tt.want(&want)
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestWithPropertiesDoesNotChangeTheOriginal(t *testing.T) {
	base := Config{Azure: Azure{SASTokens: map[string]string{"a": "1"}}}
	if _, err := base.WithProperties(map[string]string{"adls.sas-token.a": "2"}); err != nil {
		t.Fatal(err)
	}
	if base.Azure.SASTokens["a"] != "1" {
		t.Error("the map of the original was written to")
	}
}

func TestWithPropertiesErrors(t *testing.T) {
	tests := []struct{ name, property, value, say string }{
		{"bool", "gcs.no-auth", "maybe", `property gcs.no-auth = "maybe": use true or false`},
		{"addressing", "s3.path-style-access", "1.0", "use true or false"},
		{"signer", "s3.remote-signing-enabled", "true", "signed by the catalog are not supported"},
		{"protocol", "adls.protocol", "ftp", "use https or http"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Config{}.WithProperties(map[string]string{tt.property: tt.value})
			if err == nil || !strings.Contains(err.Error(), tt.say) {
				t.Errorf("%v, want %q", err, tt.say)
			}
		})
	}
}
