// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cgroup reads the memory limit of this process's Linux control groups.
package cgroup

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

// hierarchy is a mounted hierarchy of control groups that has memory limits.
type hierarchy struct {
	mount  string   // the folder it is mounted at, without the leading slash
	root   string   // the control group that is mounted there, as the process's cgroup namespace shows it
	own    string   // the control group of the process, the same way
	limits []string // the files of a control group with a limit
}

var (
	limitsV1 = []string{"memory.limit_in_bytes"}
	limitsV2 = []string{"memory.max", "memory.high"} // over memory.high the kernel slows the process to a crawl
)

// MemoryLimit returns the smallest memory limit, in bytes, of the control group of process pid and of its ancestors up to the root of each
// mounted hierarchy, of version 1 and 2; math.MaxInt64 if there is none. Files is the file system from /, as the process sees it. Limits of
// ancestors that a cgroup namespace or the mount hides are not seen.
func MemoryLimit(files fs.FS, pid int) (int64, error) {
	hierarchies, err := mounted(files)
	if err != nil {
		return 0, fmt.Errorf("find the process's control group: %w", err)
	}
	limit := int64(math.MaxInt64)
	for _, h := range hierarchies {
		for dir := h.folder(files, pid); ; dir = path.Dir(dir) {
			for _, name := range h.limits {
				bytes, err := readLimit(files, path.Join(dir, name))
				if err != nil {
					return 0, err
				}
				limit = min(limit, bytes)
			}
			if dir == h.mount {
				break
			}
		}
	}
	return limit, nil
}

// mounted returns the hierarchies with memory limits that are mounted, none on a system without control groups.
func mounted(files fs.FS) ([]hierarchy, error) {
	groups, err := readOptional(files, "proc/self/cgroup")
	if err != nil {
		return nil, err
	}
	mounts, err := readOptional(files, "proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	own1, own2 := groupsOf(groups)
	var found []hierarchy
	for line := range strings.Lines(mounts) {
		// ID PARENT DEVICE ROOT MOUNTPOINT OPTIONS [TAGS...] - TYPE SOURCE SUPEROPTIONS
		front, back, _ := strings.Cut(strings.TrimSpace(line), " - ")
		place, kind := strings.Fields(front), strings.Fields(back)
		if len(place) < 6 || len(kind) < 3 {
			continue
		}
		h := hierarchy{root: unescape(place[3]), mount: strings.TrimPrefix(path.Clean(unescape(place[4])), "/")}
		switch {
		case kind[0] == "cgroup2" && own2 != "":
			h.own, h.limits = own2, limitsV2
		case kind[0] == "cgroup" && own1 != "" && slices.Contains(strings.Split(kind[2], ","), "memory"):
			h.own, h.limits = own1, limitsV1
		default:
			continue
		}
		found = append(found, h)
	}
	return found, nil
}

// groupsOf returns the process's control group in version 1's hierarchy with the memory controller, and in version 2's, from the text of
// /proc/self/cgroup; "" where there is none.
func groupsOf(text string) (own1, own2 string) {
	for line := range strings.Lines(text) {
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3) // ID:CONTROLLERS:PATH
		if len(fields) < 3 {
			continue
		}
		switch {
		case fields[0] == "0" && fields[1] == "":
			own2 = fields[2]
		case slices.Contains(strings.Split(fields[1], ","), "memory"):
			own1 = fields[2]
		}
	}
	return own1, own2
}

// folder returns the folder of the process's control group: the mount's own where it is not below the mount.
func (h hierarchy) folder(files fs.FS, pid int) string {
	if h.root == "/.." || strings.HasPrefix(h.root, "/../") {
		return h.search(files, pid) // mounted from outside of the namespace, which doesn't know the names of its ancestors
	}
	below, ok := strings.CutPrefix(h.own, strings.TrimSuffix(h.root, "/"))
	if !ok || below != "" && below[0] != '/' || strings.HasPrefix(below, "/..") {
		return h.mount
	}
	return path.Join(h.mount, below)
}

// search returns the folder of the control group that lists the process.
func (h hierarchy) search(files fs.FS, pid int) string {
	found := h.mount
	_ = fs.WalkDir(files, h.mount, func(dir string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return nil //nolint:nilerr // a control group that has just been removed isn't the process's
		}
		text, _ := fs.ReadFile(files, path.Join(dir, "cgroup.procs"))
		if !slices.Contains(strings.Fields(string(text)), strconv.Itoa(pid)) {
			return nil
		}
		found = dir
		return fs.SkipAll
	})
	return found
}

// readLimit returns the limit in a file, math.MaxInt64 if there is no file or no limit.
func readLimit(files fs.FS, name string) (int64, error) {
	text, err := readOptional(files, name)
	if err != nil {
		return 0, fmt.Errorf("read the container's memory limit: %w", err)
	}
	limit, err := strconv.ParseInt(strings.TrimSpace(text), 10, 64)
	if err != nil {
		return math.MaxInt64, nil //nolint:nilerr // "max" is no number
	}
	return limit, nil
}

// readOptional returns the text of a file, "" if there is none.
func readOptional(files fs.FS, name string) (string, error) {
	text, err := fs.ReadFile(files, name)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(text), err
}

// unescape decodes a path in /proc/self/mountinfo, where blanks and backslashes are octal escapes.
func unescape(text string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(text)
}
