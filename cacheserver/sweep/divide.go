// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package sweep

// span is how many bytes of a sequence the parts of a sweep span for each byte of memory: rows wait for their part, so that its memory fills
// while it is read.
const span = 1.55

const (
	// apartShare is the part of the memory that the sweep gets where rows are read one by one, and apartRows the minimum of rows that it has room for.
	apartShare, apartRows = 8, 128
	// readBytes is how many bytes might be read in the time that one more read takes.
	readBytes = 64 << 10
)

// Division is how memory is divided for rows of which a share is in files alone.
type Division struct {
	Stay  int64   // bytes of rows that stay in memory; the rest of the memory is for the sweep
	Reads float64 // how many times as many bytes as all rows have are read in an epoch of shuffled rows
	Apart bool    // rows are read one by one, not in whole chunks
}

// Divide divides the memory for rows. row is the mean length of a row, and around is how many bytes are read with one that is read alone.
//
// All rows stay that fit. Else there are two ways, of which Divide takes the one with less reading. The sweep gets so much that its parts span
// what does not stay, if there is enough: then each chunk is read once an epoch, and any chunk that stays instead of it saves as many bytes as it
// takes. Or it gets little, visits find few rows in a chunk, and read these alone: then each row is read once an epoch, however little memory there is.
func Divide(memory, rows, row, around int64) Division {
	if rows <= memory {
		return Division{Stay: rows}
	}
	stay := max(0, int64((span*float64(memory)-float64(rows))/(span-1)))
	away := float64(rows - stay)
	reads := away / float64(rows) * max(1, away/(span*float64(memory-stay)))
	apart := memory - max(memory/apartShare, apartRows*row)
	each := float64(rows-apart) / float64(rows) / float64(max(row, 1))
	if apart > 0 && each*float64(row+around+readBytes) < reads {
		return Division{Stay: apart, Reads: each * float64(row+around), Apart: true}
	}
	return Division{Stay: stay, Reads: reads}
}
