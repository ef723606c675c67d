// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package spill

// direct is no flag: only Linux has O_DIRECT.
const direct = 0
