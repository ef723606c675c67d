// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// nothingLeft returns an error that names the files of a folder and the children of this process, if there are any.
func nothingLeft(folder string) error {
	files, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil {
		return err
	}
	if processes := living(func(parent, _ int) bool { return parent == os.Getpid() }); len(files)+len(processes) > 0 {
		return fmt.Errorf("the tests left the processes %v and the files %v", processes, files)
	}
	return nil
}

// living returns the IDs and names of the processes whose parent and group match. Those that have ended, and wait for their parent, don't count.
func living(match func(parent, group int) bool) (found []string) {
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		name, fields, _ := strings.Cut(string(text), ") ") // see proc(5): the ID, the name in parentheses, state, parent and group
		var state string
		var parent, group int
		if _, err := fmt.Sscan(fields, &state, &parent, &group); err == nil && state != "Z" && state != "X" && match(parent, group) {
			found = append(found, name+")")
		}
	}
	return found
}
