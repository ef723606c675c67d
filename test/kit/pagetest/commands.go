// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package pagetest

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Commands returns the reference page of a program: of each command what it does, its examples, and its flags with their environment
// variables and defaults. intro is Markdown that follows the title.
func Commands(root *cobra.Command, intro string) string {
	var page strings.Builder
	fmt.Fprintf(&page, "<!-- Made by make generate. -->\n# %s\n\n%s\n", root.CommandPath(), strings.TrimSpace(intro))
	writeCommand(&page, root)
	return page.String()
}

func writeCommand(page *strings.Builder, cmd *cobra.Command) {
	fmt.Fprintf(page, "\n## `%s`\n\n%s.\n", cmd.CommandPath(), Prose(cmd.Short))
	if cmd.Long != "" {
		fmt.Fprintf(page, "\n```text\n%s\n```\n", strings.TrimSpace(cmd.Long))
	}
	fmt.Fprintf(page, "\n```sh\n%s\n```\n", cmd.UseLine())
	if cmd.Example != "" {
		fmt.Fprintf(page, "\nExamples:\n\n```sh\n%s\n```\n", unindent(cmd.Example))
	}
	writeFlags(page, cmd.NonInheritedFlags())
	for _, child := range cmd.Commands() {
		if child.IsAvailableCommand() {
			writeCommand(page, child)
		}
	}
}

func writeFlags(page *strings.Builder, flags *pflag.FlagSet) {
	if !flags.HasAvailableFlags() {
		return
	}
	page.WriteString("\n| flag | default | environment | meaning |\n|---|---|---|---|\n")
	flags.VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Deprecated != "" {
			return
		}
		value, usage := pflag.UnquoteUsage(f)
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		if value != "" {
			name += " " + value
		}
		d := describe(usage)
		if d.fallback == "" && !isZero(f) {
			d.fallback = Code(f.DefValue)
		}
		fmt.Fprintf(page, "| %s | %s | %s | %s |\n", Code(name), d.fallback, d.variable, Prose(d.meaning))
	})
}

// isZero reports whether a flag's default is that of its type, which needs no mention.
func isZero(f *pflag.Flag) bool {
	switch f.DefValue {
	case "", "false", "0", "0s", "[]":
		return true
	}
	return false
}

// description is a flag's usage text in parts; variable and fallback are Markdown, the default in words.
type description struct{ meaning, variable, fallback string }

var (
	variableAlone = regexp.MustCompile(` ?\(env ([A-Z0-9_]+)\)`)
	variableLast  = regexp.MustCompile(`[;,] env ([A-Z0-9_]+)\)`)
	variableFirst = regexp.MustCompile(`\(env ([A-Z0-9_]+)`)
	fallbackLast  = regexp.MustCompile(` ?\(default:? ([^()]*)\)$`)
)

// describe takes the variable and the default out of a usage text: "what it is (default: this; env NAME)".
func describe(usage string) description {
	d := description{meaning: strings.Join(strings.Fields(usage), " ")}
	for _, form := range []struct {
		pattern *regexp.Regexp
		rest    string
	}{{variableAlone, ""}, {variableLast, ")"}, {variableFirst, "(env $1"}} {
		if match := form.pattern.FindStringSubmatch(d.meaning); match != nil {
			d.variable = Code(match[1])
			d.meaning = form.pattern.ReplaceAllString(d.meaning, form.rest)
			break
		}
	}
	if match := fallbackLast.FindStringSubmatch(d.meaning); match != nil {
		d.fallback = Prose(match[1])
		d.meaning = fallbackLast.ReplaceAllString(d.meaning, "")
	}
	return d
}

func unindent(text string) string {
	lines := strings.Split(text, "\n")
	for i, line := range lines {
		lines[i] = strings.TrimPrefix(line, "  ")
	}
	return strings.TrimSpace(strings.Join(lines, "\n"))
}
