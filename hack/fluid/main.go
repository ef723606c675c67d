// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command fluid is the stock controllers and the CSI plugin of Fluid in one binary, since they share nearly all their packages: the name under
// which it is started selects the program, as in Fluid's images. It is built for tests, and so has two small programs more: a registrar of the
// CSI plugin, and a FUSE client for a ThinRuntime.
package main

import (
	"fmt"
	"os"
	"path/filepath"

	alluxio "github.com/fluid-cloudnative/fluid/cmd/alluxio/app"
	csi "github.com/fluid-cloudnative/fluid/cmd/csi/app"
	dataset "github.com/fluid-cloudnative/fluid/cmd/dataset/app"
	thin "github.com/fluid-cloudnative/fluid/cmd/thin/app"
)

func main() {
	programs := map[string]func() error{
		"alluxioruntime-controller": func() error { return alluxio.NewAlluxioFSCommand().Execute() },
		"dataset-controller":        func() error { return dataset.NewDatasetCommand().Execute() },
		"fluid-csi":                 func() error { return csi.NewCSICommand().Execute() },
		"location-fuse":             func() error { return serveLocations(configFile) },
		"node-driver-registrar":     func() error { return register(os.Args[1:]) },
		"thinruntime-controller":    func() error { return thin.NewThinControllerCommand().Execute() },
	}
	name := filepath.Base(os.Args[0])
	program, known := programs[name]
	if !known {
		fmt.Fprintf(os.Stderr, "fluid: no program %q: start it by one of the names that hack/fluid/build links to it\n", name)
		os.Exit(2)
	}
	if err := program(); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", name, err)
		os.Exit(1)
	}
}
