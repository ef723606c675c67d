// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/spf13/cobra"
)

func prepareCommand(env environment) *cobra.Command {
	var dir string
	var user int
	cmd := &cobra.Command{
		Use:   "prepare",
		Short: "Create the folder for objects and give it to the user that object-cache runs as",
		Long: `prepare is for an init container that runs as root: the kubelet creates hostPath folders for root, and the server is to
run as another user. If the folder belongs to that user already, prepare does nothing.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if dir == "" {
				return errors.New("--dir: missing, want a folder on a local disk")
			}
			if user <= 0 {
				return fmt.Errorf("--user: %d, want the number of a user that is not root", user)
			}
			return giveFolder(dir, user)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", env("OBJECT_CACHE_DIR"), "folder for objects (env OBJECT_CACHE_DIR)")
	cmd.Flags().IntVar(&user, "user", 65532, "number of the user, and of the group, that the folder is for")
	return cmd
}

// giveFolder changes the owner of a folder and all its contents to a user, the folder last: if it is interrupted, the next call
// starts again.
func giveFolder(dir string, user int) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	info, err := os.Stat(dir)
	if err != nil {
		return err
	}
	if st, ok := info.Sys().(*syscall.Stat_t); ok && int(st.Uid) == user {
		return nil
	}
	err = filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		return os.Lchown(path, user, user)
	})
	if err != nil {
		return err
	}
	return os.Chown(dir, user, user)
}
