// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package proctest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kubeflow/datacache/test/kit/deadline"
)

// commands is the import path of the programs that Run builds: with it, the build works from any folder of the module.
const commands = "github.com/kubeflow/datacache/cmd/"

// Run builds programs of cmd/ (cacheserver, if none is named), with the race detector if race is set, passes the path of the first one to
// tests, and returns the result of tests, or 1 if the build failed, with an error on stderr that starts with name. It must be called once,
// from TestMain. The programs are in a temporary folder, where tests may store files; it is removed when Run returns. TMPDIR is an empty folder
// in it: if tests pass, but left a file there or a process that they started, directly or indirectly, the result is 1.
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
	folder := filepath.Join(dir, "tmp")
	if err := adopt(folder); err != nil {
		return fail(name, err)
	}
	if code := tests(filepath.Join(dir, programs[0])); code != 0 {
		return code
	}
	if err := deadline.Start().Poll(func() error { return nothingLeft(folder) }); err != nil {
		return fail(name, err)
	}
	return 0
}

// adopt makes a new folder the TMPDIR of this process and of those that it starts, and this process the parent of all its orphaned descendants.
func adopt(folder string) error {
	if _, err := claims(); err != nil { // it is in the TMPDIR of all packages' tests
		return err
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become the parent of orphans: %w", err)
	}
	if err := os.Mkdir(folder, 0o700); err != nil {
		return err
	}
	return os.Setenv("TMPDIR", folder) //nolint:forbidigo // t.TempDir has no other way to be told
}

func fail(name string, err error) int {
	fmt.Fprintln(os.Stderr, name+":", err)
	return 1
}
