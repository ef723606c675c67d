// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build unix && !linux

package offheap

import "errors"

const mapNoReserve = 0

// advisePages does nothing: only Linux has MADV_NOHUGEPAGE.
func advisePages([]byte) {}

// Populate does nothing: only Linux has MADV_POPULATE_WRITE.
func Populate([]byte) {}

// movePages is not supported.
func movePages(_, _ []byte) error { return errors.ErrUnsupported }
