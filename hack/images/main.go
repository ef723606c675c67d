// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command images writes a container image as a tarball, from layers and files, without a container engine or a registry.
//
//	images -t NAME:TAG -o TAR [-layer TAR]... [-file SRC=DST]... [-entrypoint X]... [-env K=V]... [-user U:G] [-workdir DIR]
//
// The same inputs yield the same bytes. 'docker load' and 'ctr images import' read the tarball.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
)

// words is a flag that can be repeated.
type words []string

func (w *words) String() string     { return strings.Join(*w, " ") }
func (w *words) Set(s string) error { *w = append(*w, s); return nil }

func main() {
	var spec image
	var out string
	flag.StringVar(&spec.Name, "t", "", "name and tag of the image: datacache/manager:dev")
	flag.StringVar(&out, "o", "", "the tarball to write")
	flag.Var((*words)(&spec.Layers), "layer", "a tar file that becomes a layer; the first lies lowest")
	flag.Var((*words)(&spec.Files), "file", "SRC=DST: a file for the uppermost layer; executable for all if it is so for its owner")
	flag.Var((*words)(&spec.Config.Entrypoint), "entrypoint", "a word of the command line")
	flag.Var((*words)(&spec.Config.Env), "env", "K=V: an environment variable")
	flag.StringVar(&spec.Config.User, "user", "", "numeric user and group, 65532:65532; root without")
	flag.StringVar(&spec.Config.WorkingDir, "workdir", "/", "where the command starts")
	flag.Parse()
	if err := run(spec, out, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(spec image, out string, rest []string) error {
	if len(rest) > 0 {
		return fmt.Errorf("%q is no flag", rest[0])
	}
	if out == "" {
		return fmt.Errorf("-o is empty: say which tarball to write")
	}
	return spec.write(out)
}
