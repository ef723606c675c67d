// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package chunk

import "golang.org/x/sys/unix"

const mapNoReserve = unix.MAP_NORESERVE

// advisePages asks for ordinary pages. Huge ones make the first touch a little cheaper where free memory is at
// hand, and far dearer where the kernel must first find or be given whole ones: on virtual machines that return
// free memory to their host (free page reporting), and on fragmented ones. make bench shows both ways: load, clump 1.
func advisePages(b []byte) {
	// Only advice: without it everything works.
	_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE)
}
