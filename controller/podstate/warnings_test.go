// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package podstate

import (
	"context"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// countingReader counts list calls.
type countingReader struct {
	client.Reader
	lists int
}

func (r *countingReader) List(context.Context, client.ObjectList, ...client.ListOption) error {
	r.lists++
	return nil
}

// TestWarningsAreShared checks that the events of a namespace are read once per interval, regardless of the number of caches.
func TestWarningsAreShared(t *testing.T) {
	t.Parallel()
	now, reader := time.Unix(1_000_000, 0), &countingReader{}
	w := &Warnings{Live: reader, Now: func() time.Time { return now }}
	for _, namespace := range []string{"a", "a", "b", "a", "b"} {
		if _, err := w.Of(t.Context(), namespace); err != nil {
			t.Fatal(err)
		}
	}
	now = now.Add(warningsAge)
	if _, err := w.Of(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	if reader.lists != 3 || len(w.kept) != 1 {
		t.Errorf("events were read %d times, %d namespaces are kept; want 3 and 1", reader.lists, len(w.kept))
	}
}
