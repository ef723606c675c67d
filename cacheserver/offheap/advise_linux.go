// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package offheap

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const mapNoReserve = unix.MAP_NORESERVE

// advisePages advises against transparent huge pages. They make the first access a little cheaper if free memory is available, and
// much more expensive if the kernel must compact memory or request it from the hypervisor first: on virtual machines with free page
// reporting, and on fragmented ones. make bench measures both cases: load, clump 1.
func advisePages(b []byte) {
	// This is only advice; errors don't matter.
	_ = unix.Madvise(b, unix.MADV_NOHUGEPAGE)
}

// Populate has the kernel map the pages within b at once, since b is about to be filled. One call costs a fifth less than a page
// fault for each.
func Populate(b []byte) {
	// This is only advice: unmapped pages are mapped when they are written.
	_ = unix.Madvise(b, unix.MADV_POPULATE_WRITE)
}

// movePages moves the physical pages of from to the addresses of to, which is as long and whose own pages are freed. from stays mapped, without pages.
func movePages(from, to []byte) error {
	n := uintptr(len(from))
	_, err := unix.MremapPtr(unsafe.Pointer(unsafe.SliceData(from)), n, unsafe.Pointer(unsafe.SliceData(to)), n,
		unix.MREMAP_MAYMOVE|unix.MREMAP_FIXED|unix.MREMAP_DONTUNMAP)
	return err
}
