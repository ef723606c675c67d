// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"net"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kubeflow/datacache/cacheserver/head"
	"github.com/kubeflow/datacache/cacheserver/objstore/blockcache"
	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/role"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
	"github.com/kubeflow/datacache/cacheserver/transport"
	"github.com/kubeflow/datacache/internal/command"
)

// sourceFlags configure where the table is and how its objects are accessed.
type sourceFlags struct {
	location   iceberg.Location
	files      []string
	delta      string
	partitions string
	types      map[string]string // of columns of folder names
	properties map[string]string
	stall      time.Duration
	retry      time.Duration
	through    blockcache.Config
	requests   int // at the same time to the object store; 0: objstore's default
}

func (f *sourceFlags) register(flags *pflag.FlagSet, env command.Env) {
	flags.StringVar(&f.location.Metadata, "metadata", env("METADATA_LOC"),
		"the table's metadata file: s3://, gs://, abfss://, file:// or a path (env METADATA_LOC)")
	flags.StringVar(&f.location.CatalogURI, "catalog-uri", env("CATALOG_URI"),
		"base URL of an Iceberg REST catalog, instead of --metadata (env CATALOG_URI)")
	flags.StringVar(&f.location.Warehouse, "warehouse", env("CATALOG_WAREHOUSE"), "warehouse to ask the REST catalog for (env CATALOG_WAREHOUSE)")
	flags.StringVar(&f.location.Namespace, "schema-name", env("SCHEMA_NAME"), "the table's namespace, levels joined by dots (env SCHEMA_NAME)")
	flags.StringVar(&f.location.Table, "table-name", env("TABLE_NAME"), "the table's name (env TABLE_NAME)")
	flags.StringArrayVar(&f.files, "files", addresses(env("FILES")),
		"folder, glob or file of Parquet files that no table format describes, instead of --metadata, such as s3://bucket/train/ or 'data/*/part-*.parquet',\n"+
			"or a data set on a Hugging Face hub: hf://owner/name[@revision][?config=name&split=name] (env HF_ENDPOINT, HF_TOKEN);\n"+
			"ADDRESS?list=1 is a text with the URI of one file on each line; may be repeated, for files that follow each other (env FILES, which may be a JSON list)")
	flags.StringVar(&f.delta, "delta", env("DELTA"),
		"folder of a Delta table, instead of --metadata: s3://, gs://, abfss://, file:// or a path (env DELTA)")
	flags.StringVar(&f.partitions, "partitions", env.Or("PARTITIONS", partitionsAuto), "auto makes columns of folder names of --files such as day=2026-01-31, off does not (env PARTITIONS)")
	flags.StringToStringVar(&f.types, "partition-types", object(env("PARTITION_TYPES")),
		"types of columns of folder names, as day=date: string, integer or date; otherwise the values decide (env PARTITION_TYPES, a JSON object)")
	flags.StringToStringVar(&f.properties, "property", nil,
		"Iceberg catalog or FileIO property, such as s3.endpoint=http://minio:9000 or token=...; may be repeated.\n"+
			"Credentials are better left to the cloud SDK's own chain (AWS_*, GOOGLE_APPLICATION_CREDENTIALS, AZURE_*, workload identity),\n"+
			"the REST catalog's to env CATALOG_TOKEN or CATALOG_CREDENTIAL (client-id:secret)")
	flags.DurationVar(&f.stall, "stall-timeout", 0, "try a read from the object store, or a request to the catalog, again after it has brought no byte, or less than 16 KiB/s, for this long (default 30s)")
	flags.DurationVar(&f.retry, "retry-time", 0, "report a read from the object store as failed after trying for this long (default 3m)")
	flags.StringVar(&f.through.URL, "object-cache", env("OBJECT_CACHE"), "read through the object cache at this URL, such as http://host:port (env OBJECT_CACHE)")
	flags.StringVar(&f.through.CAFile, "object-cache-ca", env("OBJECT_CACHE_CA_FILE"),
		"PEM file of the authorities of its certificates, for an https URL; read for each connection (default: the system's; env OBJECT_CACHE_CA_FILE)")
	flags.StringVar(&f.through.Bucket, "object-cache-bucket", env("OBJECT_CACHE_BUCKET"), "its bucket for the tables' blocks (env OBJECT_CACHE_BUCKET)")
	flags.StringVar(&f.through.TokenFile, "object-cache-token-file", env("OBJECT_CACHE_TOKEN_FILE"), "file of the bearer token for it (env OBJECT_CACHE_TOKEN_FILE)")
	flags.DurationVar(&f.through.Timeout, "object-cache-timeout", 0, "read a block from the object store itself after waiting for the object cache this long (default 10s)")
}

// selectionFlags select the rows and columns to cache.
type selectionFlags struct {
	snapshot string
	ref      string
	asOf     string
	columns  []string
	filter   string
	trust    bool
}

func (f *selectionFlags) register(flags *pflag.FlagSet, env command.Env) {
	flags.StringVar(&f.snapshot, "snapshot-id", env("SNAPSHOT_ID"), "cache this snapshot, or this version of --delta; empty means the current one (env SNAPSHOT_ID)")
	flags.StringVar(&f.ref, "ref", env("SNAPSHOT_REF"), "cache the snapshot of this branch or tag (env SNAPSHOT_REF)")
	flags.StringVar(&f.asOf, "as-of", env("SNAPSHOT_AS_OF"), "cache what was current at this time, as 2026-01-31T00:00:00Z (env SNAPSHOT_AS_OF)")
	flags.StringSliceVar(&f.columns, "columns", list(env("TABLE_COLUMNS")), "columns to cache, comma-separated, quoted as in CSV; none means all (env TABLE_COLUMNS, which may be a JSON list as well)")
	flags.StringVar(&f.filter, "filter", env("FILTER"), "cache only rows for which this SQL WHERE expression is true, such as \"label >= 1 AND lang = 'en'\" (env FILTER)")
	flags.BoolVar(&f.trust, "trust-manifests", env("TRUST_MANIFESTS") == "true",
		"load what the table's manifests list, even if the snapshot's summary or the manifest list counts other files or rows (env TRUST_MANIFESTS=true).\n"+
			"Without it such a table is refused, since a file that was cut off looks the same")
}

// tableFlags select a table, and the rows and columns of it.
type tableFlags struct {
	source    sourceFlags
	selection selectionFlags
	puts      bool   // of a head: clients may put datasets, and a table need not be named
	putKeep   string // how they are kept, unless a client says it
}

// registerPuts adds the flags for datasets that clients put.
func (f *tableFlags) registerPuts(flags *pflag.FlagSet, env command.Env) {
	flags.BoolVar(&f.puts, "puts", env("PUTS") == "true",
		"let clients put datasets of their own into the memory of the data nodes; without a table, the cache has these alone (docs/put.md; env PUTS=true)")
	flags.StringVar(&f.putKeep, "put-keep", env("PUT_KEEP"),
		"how datasets are kept whose clients don't say it: memory, or disk, in files of --spill-dir of the data nodes too, or replica, on another data node too\n"+
			"(default: disk where a data node has a folder, else memory; env PUT_KEEP)")
}

func (f *tableFlags) register(cmd *cobra.Command, env command.Env) {
	f.source.register(cmd.Flags(), env)
	f.selection.register(cmd.Flags(), env)
	f.complete(cmd, env)
}

// serveFlags configure a server. start completes the configuration.
type serveFlags struct {
	role.Config
	listen, http string
	transport    string
	access       string
	insecure     bool
	joined       bool // head and data nodes are separate processes, which authenticate each other with the secret
	logs         command.Logs
}

func (f *serveFlags) register(flags *pflag.FlagSet, env command.Env) {
	flags.StringVar(&f.listen, "listen", env.Or("LISTEN", ":50051"), "host:port for Arrow Flight; port 0 takes a free one (env LISTEN)")
	flags.StringVar(&f.http, "http", env.Or("HTTP_LISTEN", ":8080"), "host:port for the page at / and /healthz /ready /status /metrics; empty serves none (env HTTP_LISTEN)")
	flags.StringVar(&f.TLS.Cert, "tls-cert", env("TLS_CERT"), "PEM file of the server's certificate, read again when it changes; turns TLS on (env TLS_CERT)")
	flags.StringVar(&f.TLS.Key, "tls-key", env("TLS_KEY"), "PEM file of its private key (env TLS_KEY)")
	flags.StringVar(&f.TLS.CA, "tls-ca", env("TLS_CA"), "PEM file of the CA that the other servers' certificates are checked against (env TLS_CA)")
	flags.StringVar(&f.TLS.Authority, "tls-authority", env("TLS_AUTHORITY"),
		"PEM file of the certificate and the private key of a CA of this cache alone, instead of --tls-cert: each server makes its certificate from it, in memory.\n"+
			"The port then takes TLS 1.3 and plain text (env TLS_AUTHORITY)")
	flags.StringSliceVar(&f.TLS.Names, "tls-names", list(env("TLS_NAMES")), "host names and addresses of that certificate, besides datacache, loopback and the server's own (env TLS_NAMES)")
	flags.StringVar(&f.access, "access", env("ACCESS_FILE"),
		"JSON file that says who may read, by tokens (docs/security.md); changes of the file apply within seconds (default: everybody; env ACCESS_FILE)")
	flags.StringVar(&f.transport, "transport", env.Or("TRANSPORT", string(transport.H2)),
		"what carries Arrow Flight: h2, the server's own, or grpc, which is grpc-go and takes about twice the CPU time (env TRANSPORT)")
	flags.DurationVar(&f.Grace, "grace", 20*time.Second, "time that running streams get to end after SIGTERM")
	flags.BoolVar(&f.Profiles, "profiles", false, "serve Go's profiles under /debug/pprof/ on the --http port")
	f.Secret = env("CACHE_SECRET")
	f.logs.Register(flags, env)
}

// registerJoined adds the flags for a head, which other processes join, or for a data node, which joins a head.
func (f *serveFlags) registerJoined(flags *pflag.FlagSet, env command.Env) {
	f.register(flags, env)
	f.joined = true
	flags.BoolVar(&f.insecure, "insecure", false,
		"listen beyond loopback without a secret: whoever reaches the port may join as a data node and serve rows of its own.\n"+
			"Better give head and nodes the same secret in env CACHE_SECRET")
}

// checkSecret returns an error if the server would listen on a non-loopback address without a secret, unless this was allowed
// explicitly.
func (f *serveFlags) checkSecret() error {
	if !f.joined || f.Secret != "" || isLoopback(f.Flight.Addr()) {
		return nil
	}
	if !f.insecure {
		return fmt.Errorf("--listen: other machines may reach %s, and without a secret any of them could join this cache as head or data node; "+
			"set env CACHE_SECRET, the same on head and nodes, or listen on 127.0.0.1, or give --insecure", f.Flight.Addr())
	}
	f.Log.Warn("INSECURE: CACHE_SECRET is not set; whoever reaches this port may join the cache as head or data node, get the key of its tickets and serve rows of their own",
		"listen", f.Flight.Addr())
	return nil
}

func isLoopback(a net.Addr) bool {
	tcp, ok := a.(*net.TCPAddr)
	return ok && tcp.IP.IsLoopback()
}

// registerComparisons registers the limit on the cost of clients' filters.
func registerComparisons(flags *pflag.FlagSet, limit *int64) {
	flags.Int64Var(limit, "filter-comparisons", head.FilterComparisons,
		"comparisons that a filter of a client may take on a data node: its terms times the node's rows; IN with any number of values is one term, and so are equalities of one column joined by OR")
}

// registerFirst adds the flag of the epoch that is loaded first.
func registerFirst(flags *pflag.FlagSet, env command.Env) (first func() (*protocol.First, error)) {
	text := flags.String("first-epoch", env("FIRST_EPOCH"), `the command of the epoch that will be read first, such as {"seed":7,"global_batch":256}: `+
		"its rows are loaded in its order, if planning can count them (env FIRST_EPOCH)")
	return func() (*protocol.First, error) {
		if *text == "" {
			return nil, nil
		}
		first, err := protocol.ParseFirst(*text)
		if err != nil {
			err = fmt.Errorf("--first-epoch: %w", err)
		}
		return first, err
	}
}

// noArguments rejects positional arguments with a hint, since the usual mistake is a path without its flag.
func noArguments(_ *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%q is not a flag; a table is named by --metadata or --delta, files by --files", args[0])
	}
	return nil
}
