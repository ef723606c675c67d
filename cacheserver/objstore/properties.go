// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/kubeflow/datacache/internal/redact"
)

// WithProperties returns c with Iceberg's FileIO properties applied, under the names that Java, pyiceberg and iceberg-go use.
// Catalogs return them with a table, credentials included. Unrelated properties are ignored, but one that is unsupported, or whose
// value is invalid, is an error.
func (c Config) WithProperties(properties map[string]string) (Config, error) {
	c.Azure.SASTokens = maps.Clone(c.Azure.SASTokens)
	c.Azure.ConnectionStrings = maps.Clone(c.Azure.ConnectionStrings)
	for _, name := range slices.Sorted(maps.Keys(properties)) {
		if value := properties[name]; value != "" {
			if err := c.setProperty(name, value); err != nil {
				return c, fmt.Errorf("property %s = %q: %w", name, shown(name, value), err)
			}
		}
	}
	if properties["s3.access-key-id"] != "" && properties["s3.session-token"] == "" {
		c.S3.SessionToken = "" // it belongs to the previous key
	}
	return c, c.checkSigner(properties)
}

// setProperty stores the value of one property in its field.
func (c *Config) setProperty(name, value string) error {
	if field, ok := c.textFields()[name]; ok {
		*field = value
		return nil
	}
	if field, ok := c.boolFields()[name]; ok {
		return setBool(field, value)
	}
	switch name {
	case "s3.path-style-access":
		return c.setAddressing(value, "path", "virtual")
	case "s3.force-virtual-addressing":
		return c.setAddressing(value, "virtual", "path")
	case "adls.protocol":
		if value != "https" && value != "http" {
			return fmt.Errorf("use https or http")
		}
		c.Azure.Protocol = value
		return nil
	}
	if host, ok := strings.CutPrefix(name, "adls.sas-token"); ok {
		return setByAccount(&c.Azure.SASTokens, host, value)
	}
	if host, ok := strings.CutPrefix(name, "adls.connection-string"); ok {
		return setByAccount(&c.Azure.ConnectionStrings, host, value)
	}
	return nil
}

// textFields maps properties to fields of type string.
func (c *Config) textFields() map[string]*string {
	return map[string]*string{
		"client.region":                     &c.S3.Region,
		"s3.region":                         &c.S3.Region, // sorted after client.region, so it takes precedence
		"s3.endpoint":                       &c.S3.Endpoint,
		"s3.access-key-id":                  &c.S3.AccessKeyID,
		"s3.secret-access-key":              &c.S3.SecretAccessKey,
		"s3.session-token":                  &c.S3.SessionToken,
		"gcs.endpoint":                      &c.GCS.Endpoint,
		"gcs.service.host":                  &c.GCS.Endpoint,
		"gcs.oauth2.token":                  &c.GCS.Token,
		"gcs.jsonkey":                       &c.GCS.CredentialsJSON,
		"gcs.keypath":                       &c.GCS.CredentialsFile,
		"gcs.user-project":                  &c.GCS.UserProject,
		"adls.account-name":                 &c.Azure.Account,
		"adls.account-key":                  &c.Azure.Key,
		"adls.auth.shared-key.account.name": &c.Azure.Account,
		"adls.auth.shared-key.account.key":  &c.Azure.Key,
		"adls.endpoint":                     &c.Azure.Endpoint,
		"adls.tenant-id":                    &c.Azure.TenantID,
		"adls.client-id":                    &c.Azure.ClientID,
		"adls.client-secret":                &c.Azure.ClientSecret,
	}
}

// boolFields maps properties to fields of type bool.
func (c *Config) boolFields() map[string]*bool {
	return map[string]*bool{
		"s3.anonymous":                       &c.S3.Anonymous,
		"gcs.no-auth":                        &c.GCS.Anonymous,
		"adls.auth.managed-identity.enabled": &c.Azure.ManagedIdentity,
	}
}

// checkSigner rejects a catalog that requires remote signing, unless it also returns an access key.
func (c Config) checkSigner(properties map[string]string) error {
	const name = "s3.remote-signing-enabled"
	if on, err := strconv.ParseBool(properties[name]); err == nil && on && c.S3.AccessKeyID == "" {
		return fmt.Errorf("property %s = true: requests signed by the catalog are not supported: have the catalog vend credentials, or give the server its own and turn this off", name)
	}
	return nil
}

func (c *Config) setAddressing(value, yes, no string) error {
	var on bool
	if err := setBool(&on, value); err != nil {
		return err
	}
	c.S3.Addressing = no
	if on {
		c.S3.Addressing = yes
	}
	return nil
}

// setByAccount sets the value for the account that rest names: ".account", ".account.dfs.core.windows.net", or "" for all accounts.
func setByAccount(values *map[string]string, rest, value string) error {
	account, _, _ := strings.Cut(strings.TrimPrefix(rest, "."), ".")
	if rest != "" && rest[0] != '.' {
		return nil // an unrelated property, such as adls.sas-token-expires-at-ms.account
	}
	if *values == nil {
		*values = map[string]string{}
	}
	(*values)[account] = value
	return nil
}

func setBool(field *bool, value string) error {
	on, err := strconv.ParseBool(strings.ToLower(value))
	if err != nil {
		return fmt.Errorf("use true or false")
	}
	*field = on
	return nil
}

// shown formats a value for an error message, with secrets redacted.
func shown(name, value string) string {
	if redact.IsSecret(name) {
		return "..."
	}
	return value
}
