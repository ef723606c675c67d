// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

func TestBatchBytes(t *testing.T) {
	tests := []struct {
		name string
		said []string
		want int64 // 0 if the header is set: an error
	}{
		{"nothing", nil, 0},
		{"a number", []string{"4194304"}, 4 << 20},
		{"one", []string{"1"}, 1},
		{"none", []string{"0"}, 0},
		{"below", []string{"-1"}, 0},
		{"no number", []string{"4 MiB"}, 0},
		{"too large", []string{"9223372036854775808"}, 0},
		{"empty", []string{""}, 0},
		{"twice", []string{"1", "2"}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx := metadata.NewIncomingContext(t.Context(), metadata.MD{BatchBytesHeader: tt.said})
			got, err := BatchBytes(ctx)
			if got != tt.want {
				t.Errorf("%d, want %d", got, tt.want)
			}
			if wrong := tt.want == 0 && tt.said != nil; wrong != (err != nil) {
				t.Fatalf("error %v, want one: %t", err, wrong)
			}
			if err != nil && (status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), BatchBytesHeader)) {
				t.Errorf("%v: want an INVALID_ARGUMENT that names the header", err)
			}
		})
	}
}
