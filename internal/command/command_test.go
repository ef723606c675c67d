// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/kubeflow/datacache/internal/redact"
)

// TestHeadersOfTracesAreHidden checks that the collector's credentials are redacted from logs and spans.
func TestHeadersOfTracesAreHidden(t *testing.T) {
	HideSecrets([]string{"OTEL_EXPORTER_OTLP_HEADERS=api-key=open-sesame, authorization=Basic%20YWxhZGRpbg", "OTEL_EXPORTER_OTLP_TRACES_HEADERS=x-team=forty-thieves"}, nil)
	for _, secret := range []string{"open-sesame", "Basic%20YWxhZGRpbg", "Basic YWxhZGRpbg", "forty-thieves"} {
		if got := redact.Text("refused: " + secret); strings.Contains(got, secret) {
			t.Errorf("%q is shown: %s", secret, got)
		}
	}
}

func TestFlagErrors(t *testing.T) {
	flags := pflag.NewFlagSet("x", pflag.ContinueOnError)
	flags.Bool("puts", false, "")
	flags.Int("nodes", 1, "")
	flags.Duration("grace", 0, "")
	flags.IP("listen", nil, "")
	for text, want := range map[string]string{
		"--puts=yes!":  `--puts: "yes!": want true or false`,
		"--nodes=many": `--nodes: "many": want a whole number`,
		"--grace=1":    `--grace: "1": want a duration, such as 90s or 10m`,
		"--listen=x":   `--listen: "x": failed to parse IP: "x"`,
		"--nonsense":   "unknown flag: --nonsense",
	} {
		if err := FlagError(nil, flags.Parse([]string{text})); err == nil || err.Error() != want {
			t.Errorf("%s: %v, want %s", text, err, want)
		}
	}
}
