// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// command is the import path of the program that Run builds: with it, the build works from any folder of the module.
const command = "github.com/kubeflow/datacache/cmd/cacheserver"

// Run builds cacheserver, with the race detector if race is set, passes the path of the binary to tests, and returns the result of
// tests, or 1 if the build failed, with an error on stderr that starts with name. It must be called once, from TestMain. The binary
// is in a temporary folder, where tests may store files; it is removed when Run returns.
func Run(name string, race bool, tests func(binary string) int) int {
	dir, err := os.MkdirTemp("", name+"-")
	if err != nil {
		return fail(name, err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // on failure, files stay in the temporary folder
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
