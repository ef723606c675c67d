// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package rows

import (
	"runtime"
	"unsafe"
)

// prefetch reads the first and the last byte of each piece of slots of width bytes. These loads are independent, so the cache and TLB
// misses of many pieces overlap, while successive copies would wait for each.
func prefetch(ps []piece, src []unsafe.Pointer, width int) {
	var x byte
	for i := range ps {
		if q := &ps[i]; q.src >= 0 && q.n > 0 {
			first := unsafe.Add(src[q.src], int(q.start)*width)
			x ^= *(*byte)(first) ^ *(*byte)(unsafe.Add(first, int(q.n)*width-1))
		}
	}
	runtime.KeepAlive(x)
}

func transpose64(*[4]unsafe.Pointer, unsafe.Pointer, int, int) {
	panic("rows: there is no transpose64 here")
}

func transpose32(*[4]unsafe.Pointer, unsafe.Pointer, int, int) {
	panic("rows: there is no transpose32 here")
}

func transposeLines(*[8]unsafe.Pointer, unsafe.Pointer, int) {
	panic("rows: there is no transposeLines here")
}
