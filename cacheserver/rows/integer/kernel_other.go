// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package integer

import "unsafe"

var widen8to16, widen8to32, widen16to32, widen8to64, widen16to64, widen32to64 kernel

var narrow32to8, narrow32to16, narrow64to16, narrow64to32 kernel

func extent32(*[vectorBytes]byte, unsafe.Pointer, int) { panic("integer: there is no extent32 here") }

func extent64(*[vectorBytes]byte, unsafe.Pointer, int) { panic("integer: there is no extent64 here") }
