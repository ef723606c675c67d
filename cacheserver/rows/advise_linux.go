// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package rows

import "golang.org/x/sys/unix"

const mapNoReserve = unix.MAP_NORESERVE

// advisePages asks for ordinary pages. Huge ones make the first touch a little cheaper where free memory is at
// hand, and far dearer where the kernel must first find or be given whole ones: on virtual machines that return
// free memory to their host (free page reporting), and on fragmented ones. make bench shows both ways: load, clump 1.
func advisePages(b []byte) {
	// Only advice: without it everything works.
	_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE)
}

// populate has the kernel map pages of its own at once for b, which is about to be filled. One call for all of them
// costs a fifth less than a fault for each.
func populate(b []byte) {
	// Only advice: what is not mapped is mapped when it is written.
	_ = unix.Madvise(b, unix.MADV_POPULATE_WRITE)
}
