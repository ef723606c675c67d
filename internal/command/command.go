// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package command is what the commands of all servers have in common: environment, log, sizes of memory, version, secrets in arguments.
package command

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/kubeflow/datacache/internal/redact"
)

// Env looks up an environment variable; an empty value counts as unset.
type Env func(name string) string

// Or returns the variable's value, or the fallback if it is unset.
func (e Env) Or(name, fallback string) string { return cmp.Or(e(name), fallback) }

// Logs are the flags for the log of a process. The zero value has no format and no level: Register sets the defaults.
type Logs struct{ format, level string }

// Register adds the flags.
func (l *Logs) Register(flags *pflag.FlagSet, env Env) {
	flags.StringVar(&l.format, "log-format", env.Or("LOG_FORMAT", "text"), "text or json (env LOG_FORMAT)")
	flags.StringVar(&l.level, "log-level", env.Or("LOG_LEVEL", "info"), "debug, info, warn or error (env LOG_LEVEL)")
}

// Logger returns the log that the flags describe. It goes to stderr, without credentials.
func (l *Logs) Logger() (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(l.level)); err != nil {
		return nil, fmt.Errorf("--log-level: %q, want debug, info, warn or error", l.level)
	}
	options := &slog.HandlerOptions{Level: level}
	switch l.format {
	case "text":
		return slog.New(slog.NewTextHandler(redact.Writer(os.Stderr), options)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(redact.Writer(os.Stderr), options)), nil
	}
	return nil, fmt.Errorf("--log-format: %q, want text or json", l.format)
}

// completed are the values of flags that have only these, by flag.
var completed = map[string][]cobra.Completion{
	"transport":  {"h2", "grpc"},
	"log-format": {"text", "json"},
	"log-level":  {"debug", "info", "warn", "error"},
}

// Complete completes the values of flags that have few, at a command and those below it.
func Complete(cmd *cobra.Command) {
	for name, values := range completed {
		if cmd.Flags().Lookup(name) == nil {
			continue
		}
		if err := cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp)); err != nil {
			panic(err) // the command has the flag
		}
	}
	for _, child := range cmd.Commands() {
		Complete(child)
	}
}

// wanted says which values flags take, by the type of the flag.
var wanted = map[string]string{
	"bool": "true or false", "duration": "a duration, such as 90s or 10m", "float64": "a number",
	"int": "a whole number", "int32": "a whole number", "int64": "a whole number", "uint": "a whole number of at least 0", "uint64": "a whole number of at least 0",
}

// FlagError rewrites the error for a flag's value, which pflag words in terms of Go's parsers. It is for cobra's SetFlagErrorFunc.
func FlagError(_ *cobra.Command, err error) error {
	var wrong *pflag.InvalidValueError
	if !errors.As(err, &wrong) {
		return err
	}
	if want, ok := wanted[wrong.GetFlag().Value.Type()]; ok {
		return fmt.Errorf("--%s: %q: want %s", wrong.GetFlag().Name, wrong.GetValue(), want)
	}
	return fmt.Errorf("--%s: %q: %w", wrong.GetFlag().Name, wrong.GetValue(), wrong.Unwrap())
}

// Version is the version of this program: what the linker set, or else the module's, which go install PACKAGE@VERSION records.
func Version(linked string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		info = &debug.BuildInfo{}
	}
	return cmp.Or(linked, info.Main.Version)
}

// HideSecrets registers the credentials in the environment and in the arguments for redaction from all output.
func HideSecrets(environ, args []string) {
	for _, each := range environ {
		name, value, _ := strings.Cut(each, "=")
		redact.Property(name, value)
		if strings.HasPrefix(name, "OTEL_EXPORTER_OTLP_") && strings.HasSuffix(name, "HEADERS") {
			hideHeaders(value)
		}
	}
	for _, arg := range args { // --property s3.secret-access-key=...,token=...
		for property := range strings.SplitSeq(strings.TrimPrefix(arg, "--property="), ",") {
			name, value, _ := strings.Cut(property, "=")
			redact.Property(name, value)
		}
	}
}

// hideHeaders registers the values of an exporter's headers, which are URL-escaped: api-key=...,authorization=Bearer%20...
func hideHeaders(headers string) {
	for header := range strings.SplitSeq(headers, ",") {
		_, value, _ := strings.Cut(header, "=")
		value = strings.TrimSpace(value)
		redact.Hide(value)
		if sent, err := url.PathUnescape(value); err == nil {
			redact.Hide(sent)
		}
	}
}
