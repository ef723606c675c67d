// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package spill

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/zeebo/xxh3"
)

// The note of a plan is a text of one line. A second line is a checksum of the note's place and the text; notes of older releases have none.
const (
	noteName = "note"
	// mostNote bounds the note that Noted reads.
	mostNote = 32 << 20
)

// NotePath is the file with the note of a plan, for messages.
func (d *Dir) NotePath(plan string) string { return filepath.Join(d.path, d.place(plan, noteName)) }

// Note keeps a text of one line beside the files of a plan, in place of an older one. An empty one removes all that is left of the plan's files.
func (d *Dir) Note(plan string, text []byte) error {
	name := d.NotePath(plan)
	if len(text) == 0 {
		err := os.RemoveAll(filepath.Dir(name))
		_ = os.Remove(filepath.Dir(filepath.Dir(name))) // fails while other nodes have files there
		return err
	}
	file, err := create(name+temporary, 0)
	if err == nil {
		_, err = file.Write(fmt.Appendf(bytes.Clone(text), "\n%s", noteSum(d.place(plan, noteName), text)))
		err = errors.Join(err, file.Close())
	}
	if err == nil {
		err = os.Rename(name+temporary, name)
	}
	if err != nil {
		return fmt.Errorf("spill: %w", err)
	}
	return nil
}

// Noted returns the text of a plan, nil if there is none.
func (d *Dir) Noted(plan string) ([]byte, error) {
	file, err := open(d.NotePath(plan), os.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	all, err := io.ReadAll(io.LimitReader(file, mostNote+1))
	if err = errors.Join(err, file.Close()); err != nil {
		return nil, err
	}
	if len(all) > mostNote {
		return nil, fmt.Errorf("spill file %s: more than %d bytes", file.Name(), mostNote)
	}
	text, sum, summed := bytes.Cut(all, []byte("\n"))
	if summed && string(sum) != noteSum(d.place(plan, noteName), text) {
		return nil, fmt.Errorf("spill file %s: damaged, or written at another place", file.Name())
	}
	return text, nil
}

func noteSum(place string, text []byte) string {
	sum := xxh3.Hash128Seed(text, xxh3.HashString(place)).Bytes()
	return hex.EncodeToString(sum[:])
}
