// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spill

import "golang.org/x/sys/unix"

// direct is the flag of open that leaves out the page cache.
const direct = unix.O_DIRECT
