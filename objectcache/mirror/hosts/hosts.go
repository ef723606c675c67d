// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package hosts names a mirror to containerd, in the file that containerd reads at each pull.
package hosts

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// mark is the first line of a file that Write wrote.
const mark = "# Written by datacache's object cache, which removes this file when it stops.\n"

// Folder returns the folder in DIR to which Write writes.
func Folder(dir string) string { return filepath.Join(dir, "_default") }

// caName is the name of the file with the authorities of the mirror's certificate, beside hosts.toml.
const caName = "datacache-ca.crt"

// Write writes DIR/_default/hosts.toml, which makes containerd ask the mirror at url before the registries of all images that have no
// folder of their own in DIR (containerd's docs/hosts.md). There is no "server" in it, so the registries remain. authorities are the
// certificates, PEM, by which containerd verifies the mirror; empty for an http URL. A hosts.toml from somebody else is an error and stays. remove removes what was written, unless something else was written there since.
func Write(dir, url, authorities string) (remove func() error, err error) {
	folder := Folder(dir)
	path := filepath.Join(folder, "hosts.toml")
	lines := fmt.Sprintf("[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n  dial_timeout = \"1s\"\n", url)
	if authorities != "" {
		lines += fmt.Sprintf("  ca = %q\n", caName) // relative to hosts.toml: containerd may see the folder under another path
	}
	text := []byte(mark + lines)
	old, err := read(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err == nil && !bytes.HasPrefix(old, []byte(mark)) {
		return nil, fmt.Errorf("%s: exists and is not ours: add the mirror %s to it by hand, or remove it", path, url)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // containerd's folder is readable by all
		return nil, err
	}
	if authorities != "" {
		if err := replace(filepath.Join(folder, caName), []byte(authorities)); err != nil {
			return nil, err
		}
	}
	if err := replace(path, text); err != nil {
		return nil, err
	}
	return func() error {
		now, err := read(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && !bytes.Equal(now, text) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := os.Remove(path); err != nil || authorities == "" {
			return err
		}
		return os.Remove(filepath.Join(folder, caName))
	}, nil
}

// read reads a regular file. Anything else is an error: opening a named pipe could block, and a device could have no end.
func read(path string) ([]byte, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: not a regular file (%s): remove it", path, info.Mode().Type())
	}
	return os.ReadFile(path)
}

// replace writes a file so that readers see either the old content or the new.
func replace(path string, text []byte) error {
	file, err := os.CreateTemp(filepath.Dir(path), ".datacache-")
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	err = errors.Join(err, file.Chmod(0o644), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	return nil
}
