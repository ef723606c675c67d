// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/kubeflow/datacache/cacheserver/retry"
	"github.com/kubeflow/datacache/cacheserver/rows"
	"github.com/kubeflow/datacache/cacheserver/source"
)

// retry repeats a step of loading while its error may pass, for split index of the part or for wholePart.
func (p *part) retry(ctx context.Context, index int, step func() error) error {
	return retry.Do(ctx, p.mayPass, func(trouble string) { p.note(index, trouble) }, step)
}

// mayPass reports whether a step that failed is worth another try. In a cache that was Ready that includes what
// somebody has to set right, such as missing rights: the rows of the other nodes are worth the wait.
func (p *part) mayPass(err error) bool {
	may := p.source.Retry(err)
	if may == source.Soon {
		return true
	}
	var full *rows.ExhaustedError
	return p.assign.Ready && (may == source.OnceMended || errors.As(err, &full))
}

// note keeps why split index is tried again; the empty string ends that.
func (p *part) note(index int, trouble string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if trouble == "" {
		delete(p.waits, index)
		return
	}
	p.waits[index] = trouble
}

// trouble says in one line why loading does not get on: of the reads that are tried again, or of the first step.
func (p *part) trouble() string {
	select {
	case <-p.ended:
		return ""
	default:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waits) == 0 {
		return p.store.Trouble()
	}
	first := slices.Min(slices.Collect(maps.Keys(p.waits)))
	if more := len(p.waits) - 1; more > 0 {
		return fmt.Sprintf("%s (and %d more splits)", p.waits[first], more)
	}
	return p.waits[first]
}
