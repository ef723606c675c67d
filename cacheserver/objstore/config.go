// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"context"
	"net"
	"time"

	"github.com/kubeflow/datacache/cacheserver/objstore/blockcache"
)

// Config configures access to objects. The zero value is usable: credentials come from the default chain of each SDK, and every
// number has the documented default. A Config is plain data; New copies it.
type Config struct {
	S3    S3
	GCS   GCS
	Azure Azure
	Hub   Hub
	Retry Retry
	// ObjectCache is the cache that remote objects are read through. Default: none.
	ObjectCache blockcache.Config

	// StallTimeout ends a request that received no byte, or fewer than MinRate allows, for that long; the rest is then requested
	// again. Default 30 s.
	StallTimeout time.Duration
	// MinRate is the least number of bytes per second for a request. Default 16 KiB; a negative value disables the check.
	MinRate int64
	// Concurrency is the maximum number of concurrent requests of a Store, over all its files. Default 16.
	Concurrency int
	// CAFile names a PEM file of certificate authorities to trust instead of the
	// system's. Default: the system's.
	CAFile string
	// Dial opens connections to remote stores. Default: TCP with keep-alive probes, a timeout of 10 s.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// TailBytes is how many bytes at the end of an object Open reads. Default 256 KiB.
	TailBytes int64
	// GapBytes is the largest gap between two ranges that Prefetch still reads in one request. Default 1 MiB; a negative value merges
	// only adjacent ranges.
	GapBytes int64
	// PartBytes is the maximum length of a request that Prefetch makes. Default 8 MiB.
	PartBytes int64
}

// S3 configures access to Amazon S3 and compatible stores. The AWS SDK fills empty fields from its environment, profile, web identity
// and instance roles.
type S3 struct {
	// Region of the buckets. If a bucket turns out to be in another region, requests go there. Default us-east-1 if the SDK finds
	// none either.
	Region string
	// Endpoint is the URL of a store other than Amazon S3, such as http://minio:9000.
	Endpoint        string
	AccessKeyID     string
	SecretAccessKey string
	SessionToken    string
	// Anonymous sends requests unsigned, for public buckets.
	Anonymous bool
	// Addressing is "path" (host/bucket/key), "virtual" (bucket.host/key) or empty, which means path if an endpoint is set and
	// otherwise virtual.
	Addressing string
}

// GCS configures access to Google Cloud Storage. With empty fields, the application default credentials are used.
type GCS struct {
	// Endpoint is the URL of an emulator or a private endpoint.
	Endpoint string
	// Token is an OAuth2 access token, for example one issued by a catalog.
	Token string
	// CredentialsJSON is a service account key or the content of another Google credentials file; CredentialsFile is the path of such
	// a file.
	CredentialsJSON string
	CredentialsFile string
	// Anonymous sends requests without credentials, for public buckets.
	Anonymous bool
	// UserProject is the project billed for requests to requester-pays buckets.
	UserProject string
}

// Azure configures access to Azure Blob Storage, and to ADLS Gen2 through its blob endpoint. Credentials are used in the order of the
// fields; if all are empty, the Azure SDK's default chain is used (environment, workload identity, managed identity).
type Azure struct {
	// Account and Key are a shared key. Account is also the account of URIs that
	// name only a container.
	Account string
	Key     string
	// SASTokens and ConnectionStrings are keyed by account; the value of account "" applies to all others.
	SASTokens         map[string]string
	ConnectionStrings map[string]string
	// TenantID, ClientID and ClientSecret are a service principal. A ClientID alone selects a user-assigned managed identity.
	TenantID     string
	ClientID     string
	ClientSecret string
	// ManagedIdentity uses only the machine's identity.
	ManagedIdentity bool
	// Anonymous sends requests without credentials, for public containers.
	Anonymous bool
	// Endpoint replaces the storage domain: a host or a URL. If it is an IP address or localhost, the account is the first part of
	// the path, as with emulators.
	Endpoint string
	// Protocol is https or http, for an Endpoint that is a host. Default https.
	Protocol string
}

// Hub configures access to data sets on a Hugging Face hub.
type Hub struct {
	// Endpoint is the URL of a hub or of a mirror of one. Default https://huggingface.co.
	Endpoint string
	// Token is an access token; TokenFile is the path of one, which is read for each request. With neither, only public data sets can be
	// read.
	Token     string
	TokenFile string
}

// Retry configures the retries of requests that failed with a temporary error.
type Retry struct {
	// Attempts is the number of attempts for one range, including the first. Default 10.
	Attempts int
	// MaxTime bounds the retries: no attempt starts later than this after the first one. Default 3 minutes.
	MaxTime time.Duration
	// FirstPause and MaxPause bound the exponential backoff; each pause is a random duration between half of its bound and the bound.
	// Defaults 100 ms and 5 s.
	FirstPause time.Duration
	MaxPause   time.Duration
}

// withDefaults returns c with the default in every field that has one and isn't set.
func (c Config) withDefaults() Config {
	set(&c.StallTimeout, 30*time.Second)
	set(&c.Concurrency, 16)
	if c.MinRate == 0 {
		c.MinRate = 16 << 10
	}
	set(&c.TailBytes, 256<<10)
	set(&c.PartBytes, 8<<20)
	if c.GapBytes == 0 {
		c.GapBytes = 1 << 20
	}
	set(&c.Retry.Attempts, 10)
	set(&c.Retry.MaxTime, 3*time.Minute)
	set(&c.Retry.FirstPause, 100*time.Millisecond)
	set(&c.Retry.MaxPause, 5*time.Second)
	if c.Dial == nil {
		c.Dial = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext
	}
	return c
}

// set stores def in v unless v is positive.
func set[T int | int64 | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}
