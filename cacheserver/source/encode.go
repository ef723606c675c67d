// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package source

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
)

// encodingVersion is the first byte of encoded splits.
const encodingVersion = 1

// Flags of an encoded split.
const (
	exact    = 1 << iota // Exact
	hasRowID             // FirstRowID is not nil
	sameFile             // File, FileSize and Version are those of the split before
	deleted              // Deleted is not 0
)

// EncodeSplits encodes splits compactly: a table of folders, and for each split its file's name and version as text and its numbers as
// varints. Equal splits have equal encodings.
func EncodeSplits(splits []Split) []byte {
	folders := map[string]uint64{}
	var names, out []byte
	for i, s := range splits {
		cut := strings.LastIndexByte(s.File, '/') + 1
		id, known := folders[s.File[:cut]]
		if !known {
			id = uint64(len(folders))
			folders[s.File[:cut]] = id
			names = appendText(names, s.File[:cut])
		}
		flags := byte(0)
		if s.Exact {
			flags |= exact
		}
		if s.FirstRowID != nil {
			flags |= hasRowID
		}
		if s.Deleted != 0 {
			flags |= deleted
		}
		same := i > 0 && s.File == splits[i-1].File && s.FileSize == splits[i-1].FileSize && s.Version == splits[i-1].Version
		if same {
			flags |= sameFile
		}
		out = append(out, flags)
		if !same {
			out = binary.AppendUvarint(out, id)
			out = appendText(out, s.File[cut:])
			out = appendText(out, s.Version)
			out = binary.AppendVarint(out, s.FileSize)
		}
		if s.FirstRowID != nil {
			out = binary.AppendVarint(out, *s.FirstRowID)
		}
		if s.Deleted != 0 {
			out = binary.AppendVarint(out, s.Deleted)
		}
		for _, n := range []int64{s.Sequence, int64(s.RowGroup), s.Start, s.Length, s.First, s.Rows, s.Bytes} {
			out = binary.AppendVarint(out, n)
		}
	}
	head := binary.AppendUvarint([]byte{encodingVersion}, uint64(len(splits)))
	head = binary.AppendUvarint(head, uint64(len(folders)))
	return append(append(head, names...), out...)
}

func appendText(out []byte, text string) []byte {
	return append(binary.AppendUvarint(out, uint64(len(text))), text...)
}

// DecodeSplits decodes the output of EncodeSplits.
func DecodeSplits(data []byte) ([]Split, error) {
	d := decoder{text: string(data)}
	if v := d.byte(); v != encodingVersion && d.err == nil {
		return nil, fmt.Errorf("decode splits: version %d, want %d: run the same release on head and data nodes", v, encodingVersion)
	}
	count := d.count()
	folders := make([]string, 0, d.count())
	for range cap(folders) {
		folders = append(folders, d.string())
	}
	splits := make([]Split, 0, count)
	for range count {
		splits = append(splits, d.split(folders, splits))
		if d.err != nil {
			return nil, fmt.Errorf("decode split %d of %d: %w", len(splits)-1, count, d.err)
		}
	}
	if d.err == nil && d.text != "" {
		d.err = fmt.Errorf("%d bytes after the last of %d splits", len(d.text), count)
	}
	if d.err != nil {
		return nil, fmt.Errorf("decode splits: %w", d.err)
	}
	return splits, nil
}

// decoder reads encoded splits. After an error it returns zeros.
type decoder struct {
	text string // that is left
	err  error
}

var errShort = errors.New("the data end too early")

func (d *decoder) fail(err error) {
	if d.err == nil {
		d.err = err
	}
	d.text = ""
}

// split reads a split; before are those before it.
func (d *decoder) split(folders []string, before []Split) (s Split) {
	flags := d.byte()
	switch {
	case flags&sameFile == 0:
		folder := d.uvarint()
		if folder >= uint64(len(folders)) {
			d.fail(fmt.Errorf("folder %d of %d", folder, len(folders)))
			return s
		}
		s.File, s.Version, s.FileSize = folders[folder]+d.string(), d.string(), d.varint()
	case len(before) == 0:
		d.fail(errors.New("the first split has no file"))
	default:
		last := before[len(before)-1]
		s.File, s.Version, s.FileSize = last.File, last.Version, last.FileSize
	}
	s.Exact = flags&exact != 0
	if flags&hasRowID != 0 {
		s.FirstRowID = new(d.varint())
	}
	if flags&deleted != 0 {
		s.Deleted = d.varint()
	}
	s.Sequence, s.RowGroup, s.Start, s.Length = d.varint(), int(d.varint()), d.varint(), d.varint()
	s.First, s.Rows, s.Bytes = d.varint(), d.varint(), d.varint()
	return s
}

func (d *decoder) byte() byte {
	if d.text == "" {
		d.fail(errShort)
		return 0
	}
	b := d.text[0]
	d.text = d.text[1:]
	return b
}

// count reads the number of things that follow, each of which takes at least a byte.
func (d *decoder) count() int {
	n := d.uvarint()
	if n > uint64(len(d.text)) {
		d.fail(errShort)
		return 0
	}
	return int(n)
}

func (d *decoder) uvarint() uint64 {
	n, size := binary.Uvarint([]byte(d.text[:min(len(d.text), binary.MaxVarintLen64)]))
	if size <= 0 {
		d.fail(errShort)
		return 0
	}
	d.text = d.text[size:]
	return n
}

func (d *decoder) varint() int64 {
	n := d.uvarint()
	return int64(n>>1) ^ -int64(n&1) // zigzag, as in binary.Varint
}

func (d *decoder) string() string {
	n := d.count()
	text := d.text[:n]
	d.text = d.text[n:]
	return text
}
