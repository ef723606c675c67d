// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/kubeflow/datacache/test/kit/proctest"
)

// binary is the path of the cacheserver that every test runs.
var binary string

// together is the number of tests that run concurrently: most of them wait for processes.
const together = "5"

func TestMain(m *testing.M) {
	os.Exit(proctest.Run("faults", raceEnabled, func(built string) int {
		binary = built
		flag.Parse()                                                                              //nolint:forbidigo // the test binary's own flags
		if flag.Lookup("test.parallel").Value.String() == flag.Lookup("test.parallel").DefValue { //nolint:forbidigo // the test binary's own flags
			if err := flag.Set("test.parallel", together); err != nil { //nolint:forbidigo // the test binary's own flags
				fmt.Fprintln(os.Stderr, "faults:", err)
				return 1
			}
		}
		return m.Run()
	}))
}
