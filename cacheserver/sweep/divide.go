// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package sweep

import "github.com/kubeflow/datacache/cacheserver/rows"

// span is how many bytes of a sequence the parts of a sweep span for each byte of memory: rows wait for their part, so that its memory fills
// while it is read.
const span = 1.55

// Where rows are read one by one, the sweep gets a share of the memory, 1/apartShare, but room for at least apartRows rows.
const apartShare, apartRows = 8, 128

// Division says how the memory for rows that are in files is divided.
type Division struct {
	Stay  int64   // bytes of rows that stay in memory; the rest of the memory is for the sweep
	Reads float64 // bytes read in an epoch of shuffled rows, divided by the bytes of all rows
	Apart bool    // the sweep is expected to read rows one by one, not whole chunks
}

// Divide divides memory for total bytes of rows. row is the mean length of a row, and around is how many bytes more are read for a row that is read
// alone. If all rows fit, all stay. Otherwise Divide compares two ways and takes the cheaper one:
//
//   - Whole chunks: the sweep gets the memory with which its parts span all rows that do not stay, so that each chunk is read once an epoch. With
//     less memory than that, no row stays, and chunks are read several times.
//   - Single rows: most of the memory keeps rows, and the sweep gets little. A visit then wants few rows of a chunk and reads only these, so that each
//     row is read once an epoch, however small the memory is. Each row costs a read of its own.
func Divide(memory, total, row, around int64) Division {
	if total <= memory {
		return Division{Stay: total}
	}
	stay := max(0, int64((span*float64(memory)-float64(total))/(span-1)))
	away := float64(total - stay)
	reads := away / float64(total) * max(1, away/(span*float64(memory-stay)))
	apart := memory - max(memory/apartShare, apartRows*row)
	each := float64(total-apart) / float64(total) / float64(max(row, 1))
	if apart > 0 && each*float64(row+around+rows.ReadBytes) < reads {
		return Division{Stay: apart, Reads: each * float64(row+around), Apart: true}
	}
	return Division{Stay: stay, Reads: reads}
}
