// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
)

// configFile is where Fluid's chart for ThinRuntimes puts what is to be mounted.
const configFile = "/etc/fluid/config/config.json"

// fuseType is the file system's type, after "fuse.": a ThinRuntimeProfile's fileSystemType must be fuse.location.
const fuseType = "location"

// fuseConfig is the part of Fluid 1.0's configuration of a FUSE client that is read here (pkg/ddc/thin/type.go).
type fuseConfig struct {
	TargetPath string `json:"targetPath"`
	Mounts     []struct {
		MountPoint string `json:"mountPoint"`
		Name       string `json:"name"`
		Path       string `json:"path"`
	} `json:"mounts"`
}

// serveLocations mounts a file system with a file location.txt for each mount of the Dataset, which has the mount's location: what a job reads
// there shows whose files it was given. It returns when the file system is unmounted.
func serveLocations(file string) error {
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	var config fuseConfig
	if err := json.Unmarshal(text, &config); err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	root := &locations{files: map[string]string{}}
	for _, m := range config.Mounts {
		folder := m.Path
		if folder == "" {
			folder = "/" + m.Name
		}
		root.files[path.Join(folder, "location.txt")] = m.MountPoint + "\n"
	}
	_ = syscall.Unmount(config.TargetPath, syscall.MNT_DETACH) // of a container that was killed; there is none otherwise
	if err := os.MkdirAll(config.TargetPath, 0o755); err != nil {
		return err
	}
	server, err := fs.Mount(config.TargetPath, root, &fs.Options{MountOptions: fuse.MountOptions{
		AllowOther: true, FsName: fuseType, Name: fuseType,
		DirectMountStrict: true, DirectMountFlags: syscall.MS_RDONLY | syscall.MS_NOSUID | syscall.MS_NODEV, // by mount(2), without fusermount
	}})
	if err != nil {
		return fmt.Errorf("mount at %s: %w", config.TargetPath, err)
	}
	fmt.Printf("serving %v at %s\n", root.files, config.TargetPath)
	server.Wait()
	return nil
}

// locations is the root of the file system.
type locations struct {
	fs.Inode
	files map[string]string // content by absolute path
}

// OnAdd makes the files and their folders.
func (l *locations) OnAdd(ctx context.Context) {
	for name, content := range l.files {
		folders, file := path.Split(strings.TrimPrefix(name, "/"))
		at := &l.Inode
		for folder := range strings.SplitSeq(strings.Trim(folders, "/"), "/") {
			if folder == "" {
				continue
			}
			child := at.GetChild(folder)
			if child == nil {
				child = at.NewPersistentInode(ctx, &fs.Inode{}, fs.StableAttr{Mode: syscall.S_IFDIR})
				at.AddChild(folder, child, false)
			}
			at = child
		}
		at.AddChild(file, at.NewPersistentInode(ctx, &fs.MemRegularFile{Data: []byte(content), Attr: fuse.Attr{Mode: 0o444}}, fs.StableAttr{}), false)
	}
}
