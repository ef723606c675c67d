// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command cosign is Sigstore's cosign without the drivers of cloud providers' key services, which no release uses.
package main

import (
	"fmt"
	"os"

	"github.com/sigstore/cosign/v3/cmd/cosign/cli"
)

func main() {
	if err := cli.New().Execute(); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}
