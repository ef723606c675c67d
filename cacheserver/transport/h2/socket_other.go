// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package h2

import (
	"net"
	"time"
)

// boundBuffer does nothing: connections have the system's own limits.
func boundBuffer(net.Conn, time.Duration) {}

// backlog is not known.
type backlog struct{}

func (*backlog) waitsForNetwork(net.Conn, int) bool { return false }

// hasUnread does not know.
func hasUnread(net.Conn) bool { return false }
