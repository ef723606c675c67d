// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package sweep

// span is how many bytes of a sequence the parts of a sweep span for each byte of memory: rows wait for their part, so that its memory fills
// while it is read.
const span = 1.55

// Divide divides the memory for rows of which a share is in files alone: how many bytes of them stay in memory. reads is how many times as many
// bytes as all rows have are read in an epoch of shuffled rows. The rest of the memory is for the sweep.
//
// All rows stay that fit. Else the sweep gets so much that its parts span what does not stay, if there is enough: then each chunk is read once
// an epoch, and any chunk that stays instead of it saves as many bytes as it takes.
func Divide(memory, rows int64) (stay int64, reads float64) {
	if rows <= memory {
		return rows, 0
	}
	stay = max(0, int64((span*float64(memory)-float64(rows))/(span-1)))
	away := float64(rows - stay)
	return stay, away / float64(rows) * max(1, away/(span*float64(memory-stay)))
}
