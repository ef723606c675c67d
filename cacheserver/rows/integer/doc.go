// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package integer stores integers of 32 or 64 bits as differences from a base, in fewer bytes. See ADR 43.
package integer
