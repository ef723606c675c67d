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
	"github.com/kubeflow/datacache/internal/clause"
)

// sharedName is the name of the cache that TrainJobs of a namespace share which want the same rows: the same table, source, snapshot,
// columns and filter, however the filter is written. Sizes and credentials are not in it: those of the first TrainJob are taken.
func sharedName(arrow *v1alpha1.ArrowCache) string {
	filter := ptr.Deref(arrow.Filter, "")
	if canonical, err := clause.Canonical(filter); err == nil { // it is: Parse refuses the others
		filter = canonical
	}
	catalog := ptr.Deref(arrow.Catalog, v1alpha1.Catalog{})
	sum := sha256.New()
	fmt.Fprintf(sum, "%q %q %q %q %s %q %q", ptr.Deref(arrow.MetadataLocation, ""), catalog.URI, ptr.Deref(catalog.Warehouse, ""),
		arrow.Table, snapshotText(arrow.Snapshot), arrow.Columns, filter)
	return "shared-" + hex.EncodeToString(sum.Sum(nil)[:8])
}

func snapshotText(s *v1alpha1.Snapshot) string {
	switch {
	case s == nil:
		return "current"
	case s.ID != nil:
		return fmt.Sprint("id ", *s.ID)
	case s.AsOf != nil:
		return s.AsOf.UTC().Format(time.RFC3339)
	}
	return fmt.Sprintf("ref %q", ptr.Deref(s.Ref, ""))
}
