// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"context"
	"net"
	"time"

	"github.com/kubeflow/datacache/cacheserver/objstore/blockcache"
)

// Config says how objects are reached. The zero value is usable: credentials
// come from each SDK's own chain and every number has the default told below.
// A Config is plain data; New copies it.
type Config struct {
	S3    S3
	GCS   GCS
	Azure Azure
	Retry Retry
	// ObjectCache is read through by remote objects. Default: none.
	ObjectCache blockcache.Config

	// StallTimeout ends a request that has brought no byte for so long, or fewer
	// than MinRate; the rest is then asked for again. Default 30 s.
	StallTimeout time.Duration
	// MinRate is how many bytes a second one request must bring. Default 16 KiB;
	// negative asks for none.
	MinRate int64
	// Concurrency is the number of requests a Store has open at a time, over
	// all its files. Default 16.
	Concurrency int
	// CAFile names a PEM file of certificate authorities to trust instead of the
	// system's. Default: the system's.
	CAFile string
	// Dial opens connections to remote stores. Default: TCP with keep-alive probes, a timeout of 10 s.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)

	// TailBytes is how much of an object's end Open brings. Default 256 KiB.
	TailBytes int64
	// GapBytes is the largest gap between two ranges that Prefetch reads rather
	// than makes two requests of. Default 1 MiB; negative joins only ranges that
	// touch.
	GapBytes int64
	// PartBytes is the most that Prefetch asks for in one request. Default 8 MiB.
	PartBytes int64
}

// S3 reaches Amazon S3 and what speaks like it. Empty fields are filled by the
// AWS SDK from its environment, profile, web identity and instance roles.
type S3 struct {
	// Region of the buckets. A bucket that turns out to be in another region is
	// asked there. Default us-east-1 if the SDK's chain knows none either.
	Region string
	// Endpoint is a URL, such as http://minio:9000, for anything but Amazon S3.
	Endpoint        string
	AccessKeyID     string
	SecretAccessKey string
	SessionToken    string
	// Anonymous sends requests unsigned, for public buckets.
	Anonymous bool
	// Addressing is "path" (host/bucket/key), "virtual" (bucket.host/key) or
	// empty: path if an endpoint is set, else virtual.
	Addressing string
}

// GCS reaches Google Cloud Storage. Empty fields mean the application default
// credentials.
type GCS struct {
	// Endpoint is a URL for an emulator or a private endpoint.
	Endpoint string
	// Token is an OAuth2 access token, as catalogs hand them out.
	Token string
	// CredentialsJSON is a service account key or another Google credentials
	// file's content; CredentialsFile is the path of one.
	CredentialsJSON string
	CredentialsFile string
	// Anonymous sends requests without credentials, for public buckets.
	Anonymous bool
	// UserProject is billed for requests to requester-pays buckets.
	UserProject string
}

// Azure reaches Azure Blob Storage and ADLS Gen2 through its blob endpoint.
// Credentials are looked for in the order of the fields; if all are empty, the
// Azure SDK's default chain (environment, workload identity, managed identity).
type Azure struct {
	// Account and Key are a shared key. Account is also the account of URIs that
	// name only a container.
	Account string
	Key     string
	// SASTokens and ConnectionStrings are by account; the account "" is for any.
	SASTokens         map[string]string
	ConnectionStrings map[string]string
	// TenantID, ClientID and ClientSecret are a service principal. A ClientID
	// alone picks a user-assigned managed identity.
	TenantID     string
	ClientID     string
	ClientSecret string
	// ManagedIdentity uses the machine's identity and nothing else.
	ManagedIdentity bool
	// Anonymous sends requests without credentials, for public containers.
	Anonymous bool
	// Endpoint replaces the storage domain: a host or a URL. On an address or
	// localhost the account becomes the first part of the path, as emulators
	// have it.
	Endpoint string
	// Protocol is https or http, for an Endpoint that is a host. Default https.
	Protocol string
}

// Retry says how long a request that failed for a passing reason is tried again.
type Retry struct {
	// Attempts is the number of tries of one range, the first included. Default 10.
	Attempts int
	// MaxTime ends the trying: no try starts later than this after the first one.
	// Default 3 minutes.
	MaxTime time.Duration
	// FirstPause and MaxPause bound the exponential pause between tries, of which
	// a random half is waited at least. Defaults 100 ms and 5 s.
	FirstPause time.Duration
	MaxPause   time.Duration
}

// withDefaults returns c with a number in every field that has a default.
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

// set puts def in v unless v holds a positive number.
func set[T int | int64 | time.Duration](v *T, def T) {
	if *v <= 0 {
		*v = def
	}
}
