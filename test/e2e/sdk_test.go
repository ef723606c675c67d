// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// notebook is a process with the Kubeflow SDK that runs sdk/client.py. It is safe for concurrent use: calls are serialized.
type notebook struct {
	cmd *exec.Cmd
	in  io.Closer

	mu      sync.Mutex
	calls   *json.Encoder
	answers *json.Decoder
	said    bytes.Buffer // its output on stderr, to be read after it has ended
}

// openNotebook starts the process; the caller closes it.
func openNotebook(python, kubeconfig string) (*notebook, error) {
	cmd, err := pythonCommand(python, "client.py", "KUBECONFIG="+kubeconfig)
	if err != nil {
		return nil, err
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	n := &notebook{cmd: cmd, in: in, calls: json.NewEncoder(in), answers: json.NewDecoder(out)}
	cmd.Stderr = &n.said
	return n, cmd.Start()
}

// call has the SDK run the verb and decodes its answer.
func (n *notebook) call(t *testing.T, namespace, verb string, argument, answer any) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	err := n.calls.Encode([]any{verb, namespace, argument})
	if err == nil {
		err = n.answers.Decode(answer)
	}
	if err != nil { // it has ended or can't be used any more
		t.Fatalf("sdk/client.py %s: %v: %v\n%s", verb, err, n.close(), &n.said)
	}
}

func (n *notebook) close() error {
	return errors.Join(n.in.Close(), n.cmd.Wait())
}

// runPython runs a script of sdk/ with ask as JSON on its standard input, and returns its output.
func runPython(t *testing.T, environment []string, ask any, script string) []byte {
	t.Helper()
	input, err := json.Marshal(ask)
	if err != nil {
		t.Fatal(err)
	}
	cmd, err := pythonCommand(cluster.python, script, environment...)
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = bytes.NewReader(input)
	var said bytes.Buffer
	cmd.Stderr = &said
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("sdk/%s: %v\n%s", script, err, &said)
	}
	return out
}

// pythonCommand returns the command for a script of sdk/, with the loader, the conformance tests' oracle and docs/examples in its path.
func pythonCommand(python, script string, environment ...string) (*exec.Cmd, error) {
	var path []string
	for _, source := range []string{"../../python/src", "../conformance", "../../docs/examples"} {
		absolute, err := filepath.Abs(source)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", source, err)
		}
		path = append(path, absolute)
	}
	cmd := exec.Command(python, filepath.Join("sdk", script))
	cmd.Env = append(os.Environ(), append(environment, "PYTHONPATH="+strings.Join(path, ":"), "PYTHONDONTWRITEBYTECODE=1")...)
	return cmd, nil
}
