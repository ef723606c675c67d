// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package inject

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"k8s.io/utils/ptr"

	"github.com/kubeflow/datacache/api/v1alpha1"
	"github.com/kubeflow/datacache/cacheserver/filter/syntax"
)

// SameRows reports whether two caches hold the same rows and columns: the same table, source, snapshot, columns in order, and
// equivalent filters. Sizes and credentials don't matter.
func SameRows(a, b *v1alpha1.ArrowCache) bool { return canonicalRows(a) == canonicalRows(b) }

// sharedName is the name of the cache shared by the TrainJobs of a namespace that request the same rows, as SameRows compares them.
// Sizes and credentials are those of the first TrainJob.
func sharedName(arrow *v1alpha1.ArrowCache) string {
	sum := sha256.Sum256([]byte(canonicalRows(arrow)))
	return "shared-" + hex.EncodeToString(sum[:8])
}

// canonicalRows encodes in a canonical form which rows and columns a cache holds. It is the same for a request and for the object
// that the API server stores.
func canonicalRows(arrow *v1alpha1.ArrowCache) string {
	filter := ptr.Deref(arrow.Filter, "")
	if canonical, err := syntax.Canonical(filter); err == nil { // a filter that can't be parsed is compared literally
		filter = canonical
	}
	catalog := ptr.Deref(arrow.Catalog, v1alpha1.Catalog{})
	return fmt.Sprintf("%q %q %q %q %s %q %q", ptr.Deref(arrow.MetadataLocation, ""), catalog.URI, ptr.Deref(catalog.Warehouse, ""),
		arrow.Table, snapshotText(arrow.Snapshot), arrow.Columns, filter)
}

// snapshotText is the canonical form of a snapshot.
func snapshotText(s *v1alpha1.Snapshot) string {
	switch {
	case s == nil:
		return "current"
	case s.ID != nil:
		return "id " + *s.ID
	case s.AsOf != nil:
		if at, err := time.Parse(time.RFC3339, *s.AsOf); err == nil { // the API rejects other formats
			return "as of " + at.UTC().Format(time.RFC3339Nano)
		}
		return "as of " + *s.AsOf
	}
	return fmt.Sprintf("ref %q", ptr.Deref(s.Ref, ""))
}
