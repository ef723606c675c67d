// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objectcache

import (
	"os"
	"testing"

	"github.com/kubeflow/datacache/test/kit/proctest"
)

// binary is the path of the objectcache that every test runs.
var binary string

func TestMain(m *testing.M) {
	os.Exit(proctest.Run("objectcache", raceEnabled, func(built string) int {
		binary = built
		return m.Run()
	}, "objectcache"))
}
