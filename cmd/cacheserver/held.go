// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"syscall"
)

// holders are the processes that hold a lock on a file because they use this server.
type holders struct{ file *os.File }

// openHolders writes the server's addresses to the file for its holders to read. The file must exist.
func openHolders(name, addresses string) (*holders, error) {
	file, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return nil, fmt.Errorf("--while-held: %w", err)
	}
	if _, err := file.WriteString(addresses + "\n"); err != nil {
		return nil, fmt.Errorf("--while-held: %w", err)
	}
	return &holders{file}, nil
}

// wait returns when no other process holds a lock on the file. From then on nobody can: who tries waits until this process has ended.
func (h *holders) wait() error {
	for {
		if err := syscall.Flock(int(h.file.Fd()), syscall.LOCK_EX); err != syscall.EINTR {
			return err
		}
	}
}
