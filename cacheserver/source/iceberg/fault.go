// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package iceberg

import (
	"errors"
	"io/fs"

	icecatalog "github.com/apache/iceberg-go/catalog"
	"github.com/apache/iceberg-go/catalog/rest"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source"
	"github.com/kubeflow/datacache/internal/origin"
)

// errCatalogAway is wrapped by the error of a catalog that did not respond, or responded that it is unavailable.
var errCatalogAway = errors.New("the catalog does not answer")

// Retry implements source.Source.
func (s *Source) Retry(err error) source.Retry {
	if errors.Is(err, objstore.ErrUnavailable) || errors.Is(err, errCatalogAway) {
		return source.Soon
	}
	for _, target := range []error{fs.ErrPermission, fs.ErrNotExist, icecatalog.ErrNoSuchTable, rest.ErrUnauthorized, rest.ErrForbidden, rest.ErrAuthorizationExpired, rest.ErrOAuthError, origin.ErrElsewhere} {
		if errors.Is(err, target) {
			return source.OnceMended
		}
	}
	return source.Never
}

// awayError is an error that matches errCatalogAway.
type awayError struct{ error }

func (e awayError) Unwrap() error        { return e.error }
func (e awayError) Is(target error) bool { return target == errCatalogAway }
