// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// commands is the import path of the programs that Run builds: with it, the build works from any folder of the module.
const commands = "github.com/kubeflow/datacache/cmd/"

// Run builds programs of cmd/ (cacheserver, if none is named), with the race detector if race is set, passes the path of the first one to
// tests, and returns the result of tests, or 1 if the build failed, with an error on stderr that starts with name. It must be called once,
// from TestMain. The programs are in a temporary folder, where tests may store files; it is removed when Run returns.
func Run(name string, race bool, tests func(binary string) int, programs ...string) int {
	dir, err := os.MkdirTemp("", name+"-")
	if err != nil {
		return fail(name, err)
	}
	defer func() { _ = os.RemoveAll(dir) }() // on failure, files stay in the temporary folder
	if len(programs) == 0 {
		programs = []string{"cacheserver"}
	}
	args := []string{"build", fmt.Sprintf("-race=%v", race), "-o", dir + "/"}
	for _, program := range programs {
		args = append(args, commands+program)
	}
	build := exec.Command("go", args...)
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fail(name, fmt.Errorf("build %v: %w", programs, err))
	}
	return tests(filepath.Join(dir, programs[0]))
}

func fail(name string, err error) int {
	fmt.Fprintln(os.Stderr, name+":", err)
	return 1
}
