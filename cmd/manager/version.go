// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

// version is set by the linker: see the Makefile.
var version = "dev"
