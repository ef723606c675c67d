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

// retry repeats a step of loading while its error may pass, for split index of the assignment or for noSplit.
func (l *load) retry(ctx context.Context, index int, step func() error) error {
	return retry.Do(ctx, l.mayPass, func(trouble string) { l.progress.note(index, trouble) }, step)
}

// mayPass reports whether a step that failed is worth another try. In a cache that was Ready that includes what
// somebody has to set right, such as missing rights: the rows of the other nodes are worth the wait.
func (l *load) mayPass(err error) bool {
	may := l.source.Retry(err)
	if may == source.Soon {
		return true
	}
	var full *rows.ExhaustedError
	return l.spec.Ready && (may == source.OnceMended || errors.As(err, &full))
}
