// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/apiutil"
	"sigs.k8s.io/yaml"
)

// format is the value of --output: "json", "yaml", or "" for text for people.
type format string

const (
	formatJSON format = "json"
	formatYAML format = "yaml"
)

var _ pflag.Value = new(format)

func (f *format) String() string { return string(*f) }

// Type is what help prints for the value.
func (*format) Type() string { return "json|yaml" }

// Set parses the flag's value.
func (f *format) Set(text string) error {
	if text != string(formatJSON) && text != string(formatYAML) {
		return fmt.Errorf("%q is neither json nor yaml", text)
	}
	*f = format(text)
	return nil
}

// outputFlag adds --output to a command.
func outputFlag(cmd *cobra.Command) *format {
	f := new(format)
	cmd.Flags().VarP(f, "output", "o", "json or yaml in place of text")
	complete(cmd, "output", cobra.FixedCompletions([]cobra.Completion{string(formatJSON), string(formatYAML)}, cobra.ShellCompDirectiveNoFileComp))
	return f
}

// print writes a value in the format, which is not "".
func (f *format) print(out io.Writer, value any) error {
	text, err := json.MarshalIndent(value, "", "    ")
	if err != nil {
		return err
	}
	if *f == formatYAML {
		if text, err = yaml.JSONToYAML(text); err != nil {
			return err
		}
		_, err = out.Write(text)
		return err
	}
	_, err = fmt.Fprintln(out, string(text))
	return err
}

// printObject is print for an object or a list, with kind and apiVersion of it and of its items, which the client drops.
func (f *format) printObject(out io.Writer, object runtime.Object, c client.Client) error {
	name := func(o runtime.Object) error {
		kind, err := apiutil.GVKForObject(o, c.Scheme())
		if err == nil {
			o.GetObjectKind().SetGroupVersionKind(kind)
		}
		return err
	}
	if err := name(object); err != nil {
		return err
	}
	if meta.IsListType(object) {
		if err := meta.EachListItem(object, name); err != nil {
			return err
		}
	}
	return f.print(out, object)
}
