// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"encoding/binary"
	"math/bits"
)

// levels decodes definition levels as runs of equal levels.
type levels struct {
	runs hybrid
	most uint8 // the maximum level

	block [256 + 8]uint8 // unpacked levels, and room for a 64-bit load
	at, n int            // [at, n) of block are not read yet
}

// begin starts a page.
func (l *levels) begin(data []byte, most uint8) {
	l.runs, l.most = newHybrid(data, uint(bits.Len8(most))), most
	l.at, l.n = 0, 0
}

// peek returns the next level, and a lower bound on how many levels equal to it follow.
func (l *levels) peek() (level uint8, n int, err error) {
	if l.at == l.n {
		if err := l.runs.run(); err != nil {
			return 0, 0, err
		}
		if l.runs.packed == nil {
			if l.runs.value > uint32(l.most) {
				return 0, 0, corrupt("level %d where %d is the highest", l.runs.value, l.most)
			}
			return uint8(l.runs.value), l.runs.left, nil
		}
		if err := l.unpack(); err != nil {
			return 0, 0, err
		}
	}
	level, n = l.block[l.at], 1
	same := uint64(level) * 0x0101010101010101
	for at := l.at; at < l.n; at += 8 {
		other := binary.LittleEndian.Uint64(l.block[at:]) ^ same
		if other != 0 {
			n = at - l.at + bits.TrailingZeros64(other)/8
			break
		}
		n = at - l.at + 8
	}
	return level, min(n, l.n-l.at), nil
}

// unpack unpacks the next packed levels into block.
func (l *levels) unpack() error {
	l.at, l.n = 0, min(l.runs.left, len(l.block)-8)
	unpack(l.block[:l.n], l.runs.packed, l.runs.at, l.runs.width)
	l.runs.skip(l.n)
	for _, level := range l.block[:l.n] {
		if level > l.most {
			return corrupt("level %d where %d is the highest", level, l.most)
		}
	}
	return nil
}

// skip skips n levels returned by peek.
func (l *levels) skip(n int) {
	if l.at < l.n {
		l.at += n
		return
	}
	l.runs.skip(n)
}
