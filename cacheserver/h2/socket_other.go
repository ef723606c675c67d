// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !linux

package h2

import "net"

// dontPace does nothing where a connection's congestion control can't be chosen.
func dontPace(net.Conn) {}
