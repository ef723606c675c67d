// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package h2

import "net"

// A connection's congestion control can't be chosen here.
func congestion(net.Conn) string     { return "" }
func setCongestion(net.Conn, string) {}
