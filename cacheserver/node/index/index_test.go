// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package index

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/kubeflow/datacache/cacheserver/offheap"
	"github.com/kubeflow/datacache/cacheserver/ops"
	"github.com/kubeflow/datacache/cacheserver/pick"
)

// keepIndex makes and keeps an index of 10,000 rows; it returns the ids that were dropped for it.
func keepIndex(t *testing.T, x *Set, id string) ([]string, error) {
	t.Helper()
	const n = 10_000
	reserved, dropped, err := x.reserve(t.Context(), pick.MaxBytes(n), false)
	if err != nil {
		return dropped, err
	}
	words := make([]uint64, pick.Words(n))
	for i := range words[:n/64] {
		words[i] = 0x5555555555555555
	}
	made, err := pick.New(words, n)
	if err != nil {
		t.Fatal(err)
	}
	x.keep(id, made, reserved)
	return dropped, nil
}

func TestIdleIndexesAreDroppedForOthers(t *testing.T) {
	budget := offheap.NewBudget(1 << 20)
	x := New(t.Context(), budget, 6000, nil, ops.NewMetrics()) // an index takes 1408 bytes, and 2556 while it is made
	for _, id := range []string{"a", "b", "c"} {
		if dropped, err := keepIndex(t, x, id); err != nil || len(dropped) > 0 {
			t.Fatalf("%s: dropped %v, %v", id, dropped, err)
		}
	}
	_, endA, err := x.Lend("a")
	if err != nil {
		t.Fatal(err)
	}
	x.find("b")
	if dropped, err := keepIndex(t, x, "d"); err != nil || !cmp.Equal(dropped, []string{"c"}) {
		t.Errorf("dropped %v, %v: want c, as a is in use and b was requested later", dropped, err)
	}
	if _, _, err := x.Lend("c"); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("a dropped index: %v, want FAILED_PRECONDITION", err)
	}
	_, endB, err := x.Lend("b")
	if err != nil {
		t.Fatal(err)
	}
	_, endD, err := x.Lend("d")
	if err != nil {
		t.Fatal(err)
	}
	var full *indexRoomError
	if _, err := keepIndex(t, x, "e"); !errors.As(err, &full) || !strings.Contains(err.Error(), "needed ") {
		t.Errorf("with all indexes in use: %v, want no room, with the bytes needed", err)
	}
	endB()
	endD()
	x.Close()
	if budget.Used() == 0 {
		t.Error("the memory of an index in use was released")
	}
	endA()
	if used := budget.Used(); used != 0 {
		t.Errorf("%d bytes are still reserved after the last use", used)
	}
}

func TestIndexesRespectTheMemoryLimit(t *testing.T) {
	budget := offheap.NewBudget(2 * pick.MaxBytes(10_000))
	x := New(t.Context(), budget, 1<<30, nil, ops.NewMetrics())
	if _, err := keepIndex(t, x, "a"); err != nil {
		t.Fatal(err)
	}
	if err := budget.Reserve(pick.MaxBytes(10_000)); err != nil { // by the rows
		t.Fatal(err)
	}
	if dropped, err := keepIndex(t, x, "b"); err != nil || !cmp.Equal(dropped, []string{"a"}) {
		t.Errorf("dropped %v, %v: want a", dropped, err)
	}
}
