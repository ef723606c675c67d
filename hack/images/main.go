// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Command images makes container images and what a release publishes beside them, without a container engine. The same inputs yield the
// same bytes.
//
//	images tar -t NAME:TAG -o TAR IMAGE-FLAG...             an image of this machine's processor, for docker load and ctr images import
//	images index -o DIR -platform OS/ARCH... IMAGE-FLAG...  an image for several processors, as a folder (OCI image layout)
//	images push DIR REPOSITORY                              push such a folder by its digest, without a tag
//	images chart -time UNIX CHART.tgz REPOSITORY            push a Helm chart by its digest, without a tag
//	images attach -type TYPE -time UNIX FILE REFERENCE      push a file that refers to what is pushed (an OCI referrer)
//	images tag REFERENCE TAG...                             give tags to what is pushed
//	images sbom -name NAME ... PROGRAM...                   the modules in Go programs as SPDX
//	images roots -o FILE                                    the certificates of public authorities
//	images registry                                         a registry on loopback
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"
)

// command parses its flags and arguments and does its work.
type command func(ctx context.Context, flags *flag.FlagSet, args []string) error

var commands = map[string]command{
	"tar": tarCommand, "index": indexCommand, "push": pushCommand, "chart": chartCommand, "attach": attachCommand, "tag": tagCommand,
	"sbom": sbomCommand, "roots": rootsCommand, "registry": registryCommand,
}

// words is a flag that can be repeated.
type words []string

func (w *words) String() string     { return strings.Join(*w, " ") }
func (w *words) Set(s string) error { *w = append(*w, s); return nil }

// seconds is a flag with a Unix time.
type seconds struct{ time.Time }

func (s *seconds) String() string { return "0" }
func (s *seconds) Set(text string) error {
	var n int64
	if _, err := fmt.Sscan(text, &n); err != nil {
		return fmt.Errorf("want seconds since 1970: %w", err)
	}
	s.Time = time.Unix(n, 0).UTC()
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) == 0 || commands[args[0]] == nil {
		return fmt.Errorf("want a command, see main.go: %q", args)
	}
	flags := flag.NewFlagSet("images "+args[0], flag.ContinueOnError)
	return commands[args[0]](ctx, flags, args[1:])
}

// parse reads flags and returns the arguments behind them, which must be as many as names, or more if the last name ends in "...".
func parse(flags *flag.FlagSet, args []string, names ...string) ([]string, error) {
	if err := flags.Parse(args); err != nil {
		return nil, err
	}
	rest := flags.Args()
	more := len(names) > 0 && strings.HasSuffix(names[len(names)-1], "...")
	if len(rest) < len(names) || len(rest) > len(names) && !more {
		return nil, fmt.Errorf("want %s behind the flags of %s, got %q", strings.Join(names, " "), flags.Name(), rest)
	}
	return rest, nil
}

// imageFlags are the flags that say what is in an image.
func (i *image) imageFlags(flags *flag.FlagSet) {
	flags.Var((*words)(&i.Layers), "layer", "a tar file that becomes a layer; the first lies lowest")
	flags.Var((*words)(&i.Files), "file", "SRC=DST: a file for the uppermost layer; executable for all if it is so for its owner")
	flags.Var((*words)(&i.Config.Entrypoint), "entrypoint", "a word of the command line")
	flags.Var((*words)(&i.Config.Env), "env", "K=V: an environment variable")
	flags.StringVar(&i.Config.User, "user", "", "numeric user and group, 65532:65532; root without")
	flags.StringVar(&i.Config.WorkingDir, "workdir", "/", "where the command starts")
	flags.Func("label", "K=V: a label; of an index also an annotation", func(label string) error {
		key, value, ok := strings.Cut(label, "=")
		if !ok || key == "" {
			return fmt.Errorf("want K=V")
		}
		if i.Config.Labels == nil {
			i.Config.Labels = map[string]string{}
		}
		i.Config.Labels[key] = value
		return nil
	})
}

func tarCommand(_ context.Context, flags *flag.FlagSet, args []string) error {
	var spec image
	var out string
	spec.imageFlags(flags)
	flags.StringVar(&spec.Name, "t", "", "name and tag of the image: datacache/manager:dev")
	flags.StringVar(&out, "o", "", "the tarball to write")
	if _, err := parse(flags, args); err != nil {
		return err
	}
	if out == "" {
		return fmt.Errorf("-o is empty: say which tarball to write")
	}
	return spec.write(out)
}

func indexCommand(_ context.Context, flags *flag.FlagSet, args []string) error {
	var spec image
	var out string
	var platforms words
	var created seconds
	spec.imageFlags(flags)
	flags.StringVar(&out, "o", "", "the folder to write")
	flags.Var(&platforms, "platform", "OS/ARCH, once for each; {arch} in -file SRC becomes the processor")
	flags.Var(&created, "time", "when the image is said to be made, in seconds since 1970")
	if _, err := parse(flags, args); err != nil {
		return err
	}
	if out == "" {
		return fmt.Errorf("-o is empty: say which folder to write")
	}
	index, err := spec.index(platforms, created.Time)
	if err != nil {
		return err
	}
	return writeLayout(index, out)
}
