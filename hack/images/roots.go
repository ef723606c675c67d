// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/pem"
	"flag"
	"fmt"
	"os"

	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// rootsCommand writes the authorities that Mozilla trusts, as go.mod pins them: images don't depend on the machine that builds them. Those
// that Mozilla trusts under a condition are left out, because a PEM file can't state it.
func rootsCommand(_ context.Context, flags *flag.FlagSet, args []string) error {
	out := flags.String("o", "", "the PEM file to write")
	if _, err := parse(flags, args); err != nil {
		return err
	}
	if *out == "" {
		return fmt.Errorf("-o is empty: say which file to write")
	}
	var text bytes.Buffer
	for root := range bundle.Roots() {
		if root.Constraint != nil {
			continue
		}
		if err := pem.Encode(&text, &pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}); err != nil {
			return err
		}
	}
	return os.WriteFile(*out, text.Bytes(), 0o644)
}
