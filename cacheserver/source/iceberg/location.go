// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Location locates a table: either by Metadata alone, or by CatalogURI with a namespace and a table name. It is plain data.
type Location struct {
	// Metadata is the path or URI of the table's metadata file, such as
	// s3://bucket/db/table/metadata/00003-<uuid>.metadata.json.
	Metadata string `json:"metadata,omitempty"`
	// CatalogURI is the base URL of an Iceberg REST catalog.
	CatalogURI string `json:"catalog_uri,omitempty"`
	// Warehouse is the name or location of a warehouse of the REST catalog; many catalogs need none.
	Warehouse string `json:"warehouse,omitempty"`
	// Namespace of the table, its levels joined by dots.
	Namespace string `json:"namespace,omitempty"`
	Table     string `json:"table,omitempty"`
	// Properties are REST catalog properties as Iceberg clients spell them: token, credential, scope, oauth2-server-uri, prefix,
	// header.NAME, rest.*. Properties for the object store that the catalog returns take precedence over them.
	Properties map[string]string `json:"properties,omitempty"`
}

// Selection selects rows and columns of a table. At most one of SnapshotID, Ref and AsOf is set; none of them means the table's
// current snapshot. The zero value selects the whole current table.
type Selection struct {
	SnapshotID *int64 `json:"snapshot_id,omitempty"`
	// Ref is a branch or a tag. A branch is read with the table's current schema; a tag, a snapshot or a time is read with the schema
	// of its snapshot.
	Ref  string     `json:"ref,omitempty"`
	AsOf *time.Time `json:"as_of,omitempty"`
	// Columns are top-level column names; none means all. Columns are served in the table's order, regardless of the order here.
	Columns []string `json:"columns,omitempty"`
	// Filter is a SQL WHERE expression (package filter); empty means all rows.
	Filter string `json:"filter,omitempty"`
	// TrustManifests loads what the manifests list, even if the snapshot's summary or the manifest list counts other files or rows.
	// It says how to read the table, not which rows: a cache with it is one of the same request.
	TrustManifests bool `json:"trust_manifests,omitempty"`
}

// String names the source in messages, without its properties.
func (s Location) String() string {
	if s.Metadata != "" {
		return s.Metadata
	}
	return s.identifier() + " of catalog " + s.CatalogURI
}

func (s Location) identifier() string {
	return strings.Join(s.path(), ".")
}

// path lists the levels of the namespace and the table's name.
func (s Location) path() []string {
	return append(strings.Split(s.Namespace, "."), s.Table)
}

func (s Location) validate() error {
	switch {
	case s.Metadata == "" && s.CatalogURI == "":
		return errors.New("no table named: give a metadata file, or a catalog URI with namespace and table")
	case s.Metadata != "" && s.CatalogURI != "":
		return fmt.Errorf("metadata file %s and catalog %s: give one of the two", s.Metadata, s.CatalogURI)
	case s.Metadata != "":
		return nil
	case s.Table == "":
		return fmt.Errorf("catalog %s: table name missing: give namespace and table", s.CatalogURI)
	case slices.Contains(s.path(), ""):
		return fmt.Errorf("catalog %s: namespace %q of table %q is empty or has an empty level: write it as level.level", s.CatalogURI, s.Namespace, s.Table)
	}
	return nil
}

func (s Selection) validate() error {
	var by []string
	if s.SnapshotID != nil {
		by = append(by, fmt.Sprintf("snapshot %d", *s.SnapshotID))
	}
	if s.Ref != "" {
		by = append(by, fmt.Sprintf("ref %q", s.Ref))
	}
	if s.AsOf != nil {
		by = append(by, "as of "+s.AsOf.Format(time.RFC3339Nano))
	}
	if len(by) > 1 {
		return fmt.Errorf("%s: give at most one of snapshot, ref and time", strings.Join(by, " and "))
	}
	return nil
}
