// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package shared

import "context"

// Serve does nothing: there are no sealed memories.
func (s *Server) Serve(context.Context, int) error { return nil }
