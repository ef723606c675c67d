// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"

	"github.com/kubeflow/datacache/cacheserver/retry"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/source"
)

// retry retries a step of loading while its error may be temporary; index is that of the split in the assignment, or noSplit.
func (l *load) retry(ctx context.Context, index int, step func() error) error {
	return retry.Do(ctx, l.mayPass, func(trouble string) { l.progress.note(index, trouble) }, step)
}

// mayPass reports whether a failed step should be retried. In a cache that was Ready this includes errors that somebody must fix,
// such as missing permissions, since the rows of the other nodes are worth keeping.
func (l *load) mayPass(err error) bool {
	may := l.source.Retry(err)
	if may == source.Soon {
		return true
	}
	var full *rows.ExhaustedError
	return l.spec.Ready && (may == source.OnceMended || errors.As(err, &full))
}
