// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// command is what Run builds, by its import path: any folder of the module will do to start from.
const command = "github.com/kubeflow/datacache/cmd/cacheserver"

// Run builds cacheserver, with the race detector if race is set, hands the path of the binary to tests, and returns what
// tests returned, or 1 with a line on stderr that starts with name when it could not build. It is for TestMain, once.
// The binary lies in a temporary folder, where tests may keep more; the folder is gone when Run returns.
func Run(name string, race bool, tests func(binary string) int) int {
	dir, err := os.MkdirTemp("", name+"-")
	if err != nil {
		return fail(name, err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // what stays is in a temporary folder
	binary := filepath.Join(dir, "cacheserver")
	build := exec.Command("go", "build", fmt.Sprintf("-race=%v", race), "-o", binary, command)
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fail(name, fmt.Errorf("build cacheserver: %w", err))
	}
	return tests(binary)
}

func fail(name string, err error) int {
	fmt.Fprintln(os.Stderr, name+":", err)
	return 1
}
