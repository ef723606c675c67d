// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"strings"
	"testing"

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
