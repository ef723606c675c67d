// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"
)

func probeCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "probe FOLDER...",
		Short: "Read the first entry of folders, to see that what is mounted there answers",
		Long: `probe reads the first entry of each folder. It ends with an error if one can't be read. A folder that is empty can be
read, and so can one that other users may not list.`,
		Example: `  cacheserver probe /data/train /data/labels`,
		Args:    cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, folders []string) error {
			for _, folder := range folders {
				said, err := firstEntry(folder)
				if err != nil {
					return fmt.Errorf("read folder %s: %w", folder, err)
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", folder, said)
			}
			return nil
		},
	}
}

// firstEntry describes the first entry of a folder. Where the folder's mode keeps this user from listing it, that is no error: the file system
// answers, and jobs may run as another user. An error of permission despite the mode is the storage's.
func firstEntry(folder string) (string, error) {
	info, err := os.Stat(folder)
	if parent, e := os.Stat(filepath.Dir(folder)); errors.Is(err, fs.ErrPermission) && e == nil && parent.Mode().Perm()&0o001 == 0 {
		return fmt.Sprintf("in a folder of mode %v, which user %d may not enter", parent.Mode(), os.Getuid()), nil
	}
	if err != nil {
		return "", err
	}
	if !info.IsDir() {
		return "a file", nil
	}
	names, err := readNames(folder)
	switch {
	case errors.Is(err, io.EOF):
		return "empty", nil
	case errors.Is(err, fs.ErrPermission) && info.Mode().Perm()&0o005 != 0o005:
		return fmt.Sprintf("mode %v, which user %d may not list", info.Mode(), os.Getuid()), nil
	case err != nil:
		return "", err
	}
	return fmt.Sprintf("first entry %q", names[0]), nil
}

func readNames(folder string) ([]string, error) {
	dir, err := os.Open(folder)
	if err != nil {
		return nil, err
	}
	defer func() { _ = dir.Close() }()
	return dir.Readdirnames(1)
}
