// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package store

import (
	"errors"
	"os"
	"testing"
)

func TestReadSmall(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir(), one(mib))
	put(t, s, "b", "key", "some data")
	put(t, s, "b", "empty", "")
	buf := make([]byte, 256)
	for key, want := range map[string]string{"key": "some data", "empty": ""} {
		if got, err := s.ReadSmall("b", key, buf); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v, want %q", key, got, err, want)
		}
	}
	if _, err := s.ReadSmall("b", "none", buf); !errors.Is(err, ErrMiss) {
		t.Errorf("what is not there: %v, want %v", err, ErrMiss)
	}
	if _, err := s.ReadSmall("b", "key", buf[:20]); !errors.Is(err, ErrNotSmall) {
		t.Errorf("into a small buffer: %v, want %v", err, ErrNotSmall)
	}
	path := fileOf(s, "b", "key")
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := range text {
		text[i] ^= 1
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := s.ReadSmall("b", "key", buf); !errors.Is(err, ErrNotSmall) {
			t.Errorf("with byte %d flipped: %q, %v", i, got, err)
		}
		text[i] ^= 1
	}
}
