// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/cacheserver/source/delta"
	"github.com/kubeflow/datacache/cacheserver/source/files"
	"github.com/kubeflow/datacache/cacheserver/source/iceberg"
	"github.com/kubeflow/datacache/cacheserver/source/scan"
	"github.com/kubeflow/datacache/internal/command"
)

// The values of --partitions.
const (
	partitionsAuto = "auto"
	partitionsOff  = "off"
)

// opened is the source that the flags describe, and the store of its objects.
type opened struct {
	source.Source
	store   *objstore.Store
	catalog iceberg.Location   // of the tables to which datasets that clients put are committed
	log     func(*slog.Logger) // sets the source's log
}

// anySource opens versions of each kind of source, which the head's pin names. It plans none.
type anySource struct {
	*iceberg.Source
	files *files.Source
	delta *delta.Source
}

// Open implements source.Source.
func (s anySource) Open(ctx context.Context, v source.Version, buffers *source.Buffers) (source.Dataset, error) {
	switch kindOf(v.Pin) {
	case source.NoneKind:
		return source.None{}.Open(ctx, v, buffers)
	case files.Kind:
		return s.files.Open(ctx, v, buffers)
	case delta.Kind:
		return s.delta.Open(ctx, v, buffers)
	}
	return s.Source.Open(ctx, v, buffers)
}

// kindOf is the kind of source that made a pin; empty for tables of Iceberg.
func kindOf(pin json.RawMessage) string {
	var p struct{ Kind string }
	if json.Unmarshal(pin, &p) != nil {
		return ""
	}
	return p.Kind
}

// named returns an error if the flags name no table, or two.
func (f *sourceFlags) named() error {
	table := f.location.Metadata != "" || f.location.CatalogURI != ""
	switch {
	case len(f.files) > 0 && (table || f.delta != ""):
		return errors.New("--files: a table is named as well: give --files, --delta, or --metadata or --catalog-uri")
	case f.delta != "" && table:
		return errors.New("--delta: an Iceberg table is named as well: give --delta, or --metadata or --catalog-uri")
	case len(f.files) == 0 && f.delta == "" && !table:
		return errNoTable
	case f.partitions != partitionsAuto && f.partitions != partitionsOff:
		return fmt.Errorf("--partitions: %q, want %s or %s", f.partitions, partitionsAuto, partitionsOff)
	}
	return nil
}

var errNoTable = errors.New("no table named: give --metadata, or --catalog-uri with --schema-name and --table-name, or --files, or --delta, or --puts alone for a cache of what clients put")

// open returns the sources of versions that a head names.
func (f *sourceFlags) open(env command.Env) (opened, error) {
	table, err := f.table(env)
	if err != nil {
		return opened{}, err
	}
	return opened{Source: anySource{table, &files.Source{Store: table.Store}, &delta.Source{Store: table.Store}}, store: table.Store, catalog: f.catalog(env)}, nil
}

// catalogAlone reports whether the flags name a catalog, and no table.
func (f *sourceFlags) catalogAlone() bool {
	return f.location.CatalogURI != "" && f.location.Metadata == "" && f.location.Table == ""
}

// catalog is the location of the catalog, if the flags name one.
func (f *sourceFlags) catalog(env command.Env) iceberg.Location {
	return iceberg.Location{CatalogURI: f.location.CatalogURI, Warehouse: f.location.Warehouse, Properties: withCredentials(f.properties, env)}
}

// table returns the source of an Iceberg table, with the store for its objects. The caller sets the selection.
func (f *sourceFlags) table(env command.Env) (*iceberg.Source, error) {
	location := f.location
	location.Properties = withCredentials(f.properties, env)
	if location.Metadata != "" {
		// With METADATA_LOC the table's names are only labels; the metadata file alone determines the table.
		location.CatalogURI, location.Warehouse = "", ""
	}
	if err := f.through.Check(); err != nil {
		return nil, fmt.Errorf("--object-cache, --object-cache-ca, --object-cache-bucket, --object-cache-token-file: %w", err)
	}
	cfg, err := objstore.Config{
		S3:     objstore.S3{Endpoint: env.Or("AWS_ENDPOINT_URL_S3", env.Or("AWS_ENDPOINT_URL", env("AWS_S3_ENDPOINT")))},
		Hub:    objstore.Hub{Endpoint: env("HF_ENDPOINT"), Token: env("HF_TOKEN"), TokenFile: env("HF_TOKEN_PATH")},
		CAFile: env("AWS_CA_BUNDLE"),

		ObjectCache:  f.through,
		Concurrency:  f.requests,
		StallTimeout: f.stall,
		Retry:        objstore.Retry{MaxTime: f.retry},
	}.WithProperties(f.properties)
	if err != nil {
		return nil, fmt.Errorf("--property: %w", err)
	}
	return &iceberg.Source{Store: objstore.New(cfg), Location: location}, nil
}

// folders returns the source of the files that the flags name.
func (f *sourceFlags) folders(store *objstore.Store) (*files.Source, error) {
	s := &files.Source{Store: store, Location: files.Location{Plain: f.partitions == partitionsOff, Types: f.types}}
	for _, uri := range f.files {
		uri, err := absolute(uri)
		if err != nil {
			return nil, fmt.Errorf("--files: %w", err)
		}
		s.Location.URIs = append(s.Location.URIs, uri)
	}
	return s, nil
}

// absolute makes a path absolute, so that it is the same in every process. URIs stay as they are.
func absolute(uri string) (string, error) {
	if uri == "" || strings.Contains(uri, ":/") {
		return uri, nil
	}
	return filepath.Abs(uri)
}

// open returns the source of the table or the files, with the selection. pinned is the number of the version to plan; nil: any.
func (f *tableFlags) open(env command.Env, pinned *int64) (opened, error) {
	err := f.source.named()
	none := f.puts && (errors.Is(err, errNoTable) || err == nil && f.source.catalogAlone())
	if err != nil && !none {
		return opened{}, err
	} else if none {
		of, err := f.source.open(env)
		of.Source = source.None{}
		return of, err
	}
	f.source.requests = scan.FooterReaders
	table, err := f.table(env)
	if err != nil {
		return opened{}, err
	}
	of := opened{store: table.Store, catalog: f.source.catalog(env), log: func(*slog.Logger) {}}
	selected, chosen := table.Selection, scan.Selection{Columns: f.selection.columns, Filter: f.selection.filter}
	switch {
	case f.source.delta != "":
		if selected.Ref != "" || selected.TrustManifests {
			return opened{}, errors.New("--delta: Delta tables have no branches and no manifests: leave out --ref and --trust-manifests; --snapshot-id names a version")
		}
		uri, err := absolute(f.source.delta)
		if err != nil {
			return opened{}, fmt.Errorf("--delta: %w", err)
		}
		of.Source = &delta.Source{Store: table.Store, URI: uri, Pinned: pinned, Selection: delta.Selection{Version: selected.SnapshotID, AsOf: selected.AsOf, Selection: chosen}}
	case len(f.source.files) > 0:
		if selected.SnapshotID != nil || selected.Ref != "" || selected.AsOf != nil || selected.TrustManifests {
			return opened{}, errors.New("--files: plain files have no snapshots and no manifests: leave out --snapshot-id, --ref, --as-of and --trust-manifests")
		}
		folders, err := f.source.folders(table.Store)
		if err != nil {
			return opened{}, err
		}
		folders.Pinned, folders.Selection = pinned, chosen
		of.Source, of.log = folders, func(log *slog.Logger) { folders.Log = log }
	default:
		table.Pinned = pinned
		of.Source = table
	}
	return of, nil
}

// table returns the source of the Iceberg table, with the selection.
func (f *tableFlags) table(env command.Env) (*iceberg.Source, error) {
	table, err := f.source.table(env)
	if err != nil {
		return nil, err
	}
	table.Selection, err = f.selection.selection()
	return table, err
}

// withCredentials adds the credentials for the REST catalog from the environment; properties given as flags take precedence.
func withCredentials(given map[string]string, env command.Env) map[string]string {
	properties := map[string]string{}
	for name, variable := range map[string]string{"token": "CATALOG_TOKEN", "credential": "CATALOG_CREDENTIAL"} {
		if value := env(variable); value != "" {
			properties[name] = value
		}
	}
	maps.Copy(properties, given)
	return properties
}

// list parses a JSON list of names, or names separated by commas. Malformed JSON is returned as one name, so that loading fails with
// an error that names it.
func list(text string) []string {
	if text == "" || strings.HasPrefix(text, "[") {
		return addresses(text)
	}
	return strings.Split(text, ",")
}

// object parses a JSON object. Malformed JSON is returned as a key without a value, so that loading fails with an error that names it.
func object(text string) map[string]string {
	if text == "" {
		return nil
	}
	var pairs map[string]string
	if json.Unmarshal([]byte(text), &pairs) != nil {
		return map[string]string{text: ""}
	}
	return pairs
}

// addresses parses a JSON list, or one address.
func addresses(text string) []string {
	if text == "" {
		return nil
	}
	var all []string
	if !strings.HasPrefix(text, "[") || json.Unmarshal([]byte(text), &all) != nil {
		return []string{text}
	}
	return all
}

func (f *selectionFlags) selection() (iceberg.Selection, error) {
	s := iceberg.Selection{Ref: f.ref, Columns: f.columns, Filter: f.filter, TrustManifests: f.trust}
	id, err := snapshotID("snapshot-id", f.snapshot)
	if err != nil {
		return s, err
	}
	s.SnapshotID = id
	if f.asOf != "" {
		at, err := time.Parse(time.RFC3339, f.asOf)
		if err != nil {
			return s, fmt.Errorf("--as-of: %q, want a time such as 2026-01-31T00:00:00Z", f.asOf)
		}
		s.AsOf = &at
	}
	return s, nil
}

// snapshotID parses the number given for a flag; nil if none was given.
func snapshotID(flag, text string) (*int64, error) {
	if text == "" {
		return nil, nil
	}
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, fmt.Errorf("--%s: %q, want the number of a snapshot", flag, text)
	}
	return &id, nil
}
