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

	"github.com/kubeflow/datacache/internal/command"
	"github.com/kubeflow/datacache/objectcache/mirror/hosts"
)

func prepareCommand(env command.Env) *cobra.Command {
	var dir, hostsDir string
	var user int
	cmd := &cobra.Command{
		Use:   "prepare",
		Short: "Create the folder for objects and give it to the user that objectcache runs as",
		Long: `prepare is for an init container that runs as root: the kubelet creates hostPath folders for root, and the server is to
run as another user. If the folder belongs to that user already, prepare does nothing. With --write-hosts, as of objectcache, the
user also gets the folder in which objectcache writes its file for containerd: the folder alone, and no file in it.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if dir == "" {
				return errors.New("--dir: missing, want a folder on a local disk")
			}
			if user <= 0 {
				return fmt.Errorf("--user: %d, want the number of a user that is not root", user)
			}
			if hostsDir != "" {
				if err := giveHostsFolder(hostsDir, user); err != nil {
					return fmt.Errorf("--write-hosts: %w", err)
				}
			}
			return giveFolder(dir, user)
		},
	}
	cmd.Flags().StringVar(&dir, "dir", env("OBJECT_CACHE_DIR"), "folder for objects (env OBJECT_CACHE_DIR)")
	cmd.Flags().StringVar(&hostsDir, "write-hosts", env("WRITE_HOSTS"), "containerd's folder of registry hosts; empty: none (env WRITE_HOSTS)")
	cmd.Flags().IntVar(&user, "user", 65532, "number of the user, and of the group, that the folder is for")
	return cmd
}

// giveHostsFolder creates the folder of hosts.Write in dir, which everybody can read, and changes its owner to a user.
func giveHostsFolder(dir string, user int) error {
	folder := hosts.Folder(dir)
	if err := os.MkdirAll(folder, 0o755); err != nil { //nolint:gosec // containerd's folder is readable by all
		return err
	}
	return os.Chown(folder, user, user)
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
