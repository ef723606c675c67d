// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command fluid is the stock controllers of Fluid in one binary, since they share nearly all their packages: the name under which it is started
// selects the controller, as in Fluid's images. It is built for tests.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	alluxio "github.com/fluid-cloudnative/fluid/cmd/alluxio/app"
	dataset "github.com/fluid-cloudnative/fluid/cmd/dataset/app"
	thin "github.com/fluid-cloudnative/fluid/cmd/thin/app"
	"github.com/spf13/cobra"
)

func main() {
	programs := map[string]func() *cobra.Command{
		"dataset-controller":        dataset.NewDatasetCommand,
		"alluxioruntime-controller": alluxio.NewAlluxioFSCommand,
		"thinruntime-controller":    thin.NewThinControllerCommand,
	}
	name := filepath.Base(os.Args[0])
	program, known := programs[name]
	if !known {
		fmt.Fprintf(os.Stderr, "fluid: no program %q: start it as dataset-controller, alluxioruntime-controller or thinruntime-controller\n", name)
		os.Exit(2)
	}
	if err := program().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
