// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/Azure/azure-sdk-for-go/sdk/azcore"
	"github.com/Azure/azure-sdk-for-go/sdk/azcore/policy"
	"github.com/Azure/azure-sdk-for-go/sdk/azidentity"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/blob"
	"github.com/Azure/azure-sdk-for-go/sdk/storage/azblob/container"

	"github.com/kubeflow/datacache/internal/origin"
)

const azureDomain = "blob.core.windows.net"

// azureBucket is one container, read through the blob API, which Data Lake Storage accounts support too.
type azureBucket struct {
	client *container.Client
}

// newAzureBucket makes the client of the container that loc names; tokens is the client for servers that issue tokens.
func newAzureBucket(cfg Azure, client, tokens *http.Client, loc location) (*azureBucket, error) {
	account, domain, err := azureAccount(cfg, loc)
	if err != nil {
		return nil, err
	}
	options := &container.ClientOptions{ClientOptions: azcore.ClientOptions{
		Transport: client,
		Retry:     policy.RetryOptions{MaxRetries: -1}, // Store.retry does the retries and counts them
		Telemetry: policy.TelemetryOptions{Disabled: true},
	}}
	c, err := azureContainer(cfg, account, azureURL(cfg, account, domain)+"/"+loc.bucket, loc.bucket, options, tokens)
	if err != nil {
		return nil, &credentialsError{fmt.Errorf("azure account %s: %w", account, err)}
	}
	return &azureBucket{client: c}, nil
}

// azureAccount splits account.dfs.core.windows.net into the account and the
// domain of its blob endpoint.
func azureAccount(cfg Azure, loc location) (account, domain string, err error) {
	account, domain, _ = strings.Cut(loc.host, ".")
	account = cmp.Or(account, cfg.Account)
	if account == "" {
		return "", "", fmt.Errorf("no account: write abfss://%s@account.dfs.core.windows.net/... or set the Azure account", loc.bucket)
	}
	if rest, ok := strings.CutPrefix(domain, "dfs."); ok {
		domain = "blob." + rest
	}
	return account, cmp.Or(domain, azureDomain), nil
}

// azureURL is the URL of an account's blob service, without a trailing slash.
func azureURL(cfg Azure, account, domain string) string {
	protocol, host := cmp.Or(cfg.Protocol, "https"), domain
	if cfg.Endpoint != "" {
		host = cfg.Endpoint
		if p, rest, ok := strings.Cut(cfg.Endpoint, "://"); ok {
			protocol, host = p, rest
		}
		host = strings.TrimSuffix(host, "/")
	}
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	if name == "localhost" || net.ParseIP(strings.Trim(name, "[]")) != nil {
		return protocol + "://" + host + "/" + account
	}
	return protocol + "://" + account + "." + host
}

// azureContainer chooses the credentials, in the order that Azure documents.
func azureContainer(cfg Azure, account, base, name string, options *container.ClientOptions, tokens *http.Client) (*container.Client, error) {
	switch sas, connection := byAccount(cfg.SASTokens, account), byAccount(cfg.ConnectionStrings, account); {
	case cfg.Anonymous:
		return container.NewClientWithNoCredential(base, options)
	case cfg.Key != "" && (cfg.Account == "" || cfg.Account == account):
		key, err := container.NewSharedKeyCredential(account, cfg.Key)
		if err != nil {
			return nil, err
		}
		return container.NewClientWithSharedKeyCredential(base, key, options)
	case sas != "":
		if err := onlyAzure(cfg, base); err != nil {
			return nil, err
		}
		return container.NewClientWithNoCredential(base+"?"+strings.TrimPrefix(sas, "?"), options)
	case connection != "":
		return container.NewClientFromConnectionString(connection, name, options)
	}
	if err := onlyAzure(cfg, base); err != nil {
		return nil, err
	}
	token, err := azureToken(cfg, tokens)
	if err != nil {
		return nil, err
	}
	return container.NewClient(base, token, options)
}

// azureDomains are those of Azure's storage: its clouds, accounts in zones, and OneLake.
var azureDomains = []string{".core.windows.net", ".core.chinacloudapi.cn", ".core.usgovcloudapi.net", ".core.cloudapi.de", ".storage.azure.net", ".fabric.microsoft.com"}

// onlyAzure returns an error if a URI, which a table's files may have, would send tokens to a server that is neither Azure's nor configured.
func onlyAzure(cfg Azure, base string) error {
	u, err := url.Parse(base)
	if err != nil {
		return err
	}
	if cfg.Endpoint != "" || slices.ContainsFunc(azureDomains, func(domain string) bool { return strings.HasSuffix(u.Hostname(), domain) }) {
		return nil
	}
	return fmt.Errorf("%s is no server of Azure's storage, %w: use an account of %s, or set adls.endpoint", u.Hostname(), origin.ErrElsewhere, strings.Join(azureDomains, ", "))
}

// azureToken returns the identity that requests tokens.
func azureToken(cfg Azure, client *http.Client) (azcore.TokenCredential, error) {
	by := azcore.ClientOptions{Transport: client}
	switch {
	case cfg.ClientSecret != "":
		return azidentity.NewClientSecretCredential(cfg.TenantID, cfg.ClientID, cfg.ClientSecret, &azidentity.ClientSecretCredentialOptions{ClientOptions: by})
	case cfg.ManagedIdentity || cfg.ClientID != "" && cfg.TenantID == "":
		options := &azidentity.ManagedIdentityCredentialOptions{ClientOptions: by}
		if cfg.ClientID != "" {
			options.ID = azidentity.ClientID(cfg.ClientID)
		}
		return azidentity.NewManagedIdentityCredential(options)
	}
	return azidentity.NewDefaultAzureCredential(&azidentity.DefaultAzureCredentialOptions{ClientOptions: by, TenantID: cfg.TenantID})
}

// byAccount returns the value for the account, or else the one for all accounts.
func byAccount(values map[string]string, account string) string {
	return cmp.Or(values[account], values[""])
}

func (b *azureBucket) get(ctx context.Context, key string, want span, tag string) (answer, error) {
	client := b.client.NewBlobClient(key)
	if want.last { // Azure has no suffix ranges ("last n bytes"): ask for the size first
		properties, err := client.GetProperties(ctx, nil)
		if err != nil {
			return answer{}, azureError(err)
		}
		if properties.ContentLength == nil {
			return answer{}, fmt.Errorf("no Content-Length in the answer to HEAD: %w", errProtocol)
		}
		size := *properties.ContentLength
		want = span{first: max(0, size-want.length), length: min(size, want.length), all: size == 0}
		if properties.ETag != nil {
			tag = string(*properties.ETag)
		}
	}
	options := &blob.DownloadStreamOptions{}
	if !want.all {
		options.Range = blob.HTTPRange{Offset: want.first, Count: want.length}
	}
	if tag != "" {
		match := azcore.ETag(tag)
		options.AccessConditions = &blob.AccessConditions{ModifiedAccessConditions: &blob.ModifiedAccessConditions{IfMatch: &match}}
	}
	out, err := client.DownloadStream(ctx, options)
	if err != nil {
		return answer{}, azureError(err)
	}
	return azureAnswer(out), nil
}

func (b *azureBucket) list(ctx context.Context, prefix, token string) (page, error) {
	options := &container.ListBlobsFlatOptions{Prefix: &prefix}
	if token != "" {
		options.Marker = &token
	}
	out, err := b.client.NewListBlobsFlatPager(options).NextPage(ctx)
	if err != nil {
		return page{}, azureError(err)
	}
	p := page{}
	if out.NextMarker != nil {
		p.next = *out.NextMarker
	}
	for _, o := range out.Segment.BlobItems {
		l := listed{key: *o.Name}
		if o.Properties.ContentLength != nil {
			l.size = *o.Properties.ContentLength
		}
		if o.Properties.ETag != nil { // without the quotes of the header
			l.tag = strconv.Quote(strings.Trim(string(*o.Properties.ETag), `"`))
		}
		p.entries = append(p.entries, l)
	}
	return p, nil
}

func azureAnswer(out blob.DownloadStreamResponse) answer {
	length, contentRange, tag := int64(-1), "", ""
	if out.ContentLength != nil {
		length = *out.ContentLength
	}
	if out.ContentRange != nil {
		contentRange = *out.ContentRange
	}
	if out.ETag != nil {
		tag = string(*out.ETag)
	}
	a := newAnswer(out.Body, contentRange, length, tag)
	if out.LastModified != nil {
		a.modified = *out.LastModified
	}
	return a
}

// azureError converts a response of Azure to a refusal, and a failure to get a token to a credentialsError.
func azureError(err error) error {
	var failed *azidentity.AuthenticationFailedError
	var required *azidentity.AuthenticationRequiredError
	if errors.As(err, &failed) || errors.As(err, &required) || strings.Contains(err.Error(), "DefaultAzureCredential:") {
		return &credentialsError{err}
	}
	var sent *url.Error
	if errors.As(err, &sent) { // its URL may contain a SAS token, which is a secret
		return fmt.Errorf("%s: %w", sent.Op, sent.Err)
	}
	var response *azcore.ResponseError
	if !errors.As(err, &response) {
		return err
	}
	return &refusal{status: response.StatusCode, code: response.ErrorCode}
}
