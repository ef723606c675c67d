// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package chunk

const mapNoReserve = 0

// adviseHuge does nothing: only Linux has MADV_HUGEPAGE.
func adviseHuge([]byte) {}
