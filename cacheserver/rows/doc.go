// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rows is the memory of a data node: rows laid out off the Go heap as Arrow IPC bodies, counted byte by byte against a budget and handed out as messages.
//
// A [Builder] turns record batches into chunks inside an [Arena]; [Rows] strings chunks together and answers
// with rows in order ([Rows.Range]) or with picked rows ([Rows.Gather]).
//
// Every builder, range and gather is the same two passes. The first ([copier.measure]) follows pieces, which are
// runs of consecutive slots of one source, down the columns' trees and sums what they will take; the second
// ([copier.fill]) copies them to where they belong. Memory is reserved between the two. Messages refer to what is
// long instead of copying it.
//
// A chunk is the body of a message, but for narrow columns, which lie row by row in it: see [strip].
// The bytes of a message are those of the Arrow IPC format on a little-endian machine: buffers start at multiples of 64,
// padding is zero, a validity bitmap is left out when every slot is valid, offsets start at 0. Below a null
// there is nothing but zeros, empty values and more nulls, so that equal rows give equal bytes.
package rows
