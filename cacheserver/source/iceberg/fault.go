// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"errors"
	"io/fs"

	icecatalog "github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/catalog/rest"

	"github.com/kubeflow/datacache/cacheserver/objstore"
)

// errCatalogAway is in the chain of an error of a catalog that did not answer, or answered that it can't now.
var errCatalogAway = errors.New("the catalog does not answer")

// MayPass reports whether the reason of an error may be gone by itself at the next try: a store or catalog that
// is away, overloaded or slow.
func MayPass(err error) bool {
	return errors.Is(err, objstore.ErrUnavailable) || errors.Is(err, errCatalogAway)
}

// Curable reports whether MayPass does, or somebody can remove the reason without a change of the table: rights, a
// file or a table that is missing.
func Curable(err error) bool {
	if MayPass(err) {
		return true
	}
	for _, target := range []error{fs.ErrPermission, fs.ErrNotExist, icecatalog.ErrNoSuchTable, rest.ErrUnauthorized, rest.ErrForbidden, rest.ErrAuthorizationExpired, rest.ErrOAuthError} {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// awayError is an error of which errors.Is says errCatalogAway.
type awayError struct{ error }

func (e awayError) Unwrap() error        { return e.error }
func (e awayError) Is(target error) bool { return target == errCatalogAway }
