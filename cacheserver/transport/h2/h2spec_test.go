// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"net"
	"os"
	"os/exec"
	"testing"
)

// TestH2Spec runs h2spec (github.com/summerwind/h2spec), some 150 checks of RFC 7540 and 7541. With --strict it includes checks that
// many servers fail.
func TestH2Spec(t *testing.T) {
	server := serve(t, Config{}, nil)
	host, port, err := net.SplitHostPort(server.address)
	if err != nil {
		t.Fatal(err)
	}
	tester := exec.CommandContext(t.Context(), "go", "tool", "-modfile=../../../hack/h2spec/go.mod", "h2spec", "--strict", "--timeout", "60", "--host", host, "--port", port)
	tester.Env = append(os.Environ(), "GOARCH=") // GOARCH of this machine, even if the test is emulated for another one
	if report, err := tester.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, report)
	}
}
