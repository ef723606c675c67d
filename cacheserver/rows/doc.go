// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package rows is the memory of a data node: rows laid out outside the Go heap as Arrow IPC bodies, accounted exactly in a budget and
// sent as messages.
//
// A [Builder] turns record batches into chunks inside an [Arena]; [Rows] is a sequence of chunks and returns consecutive rows
// ([Rows.Range]) or selected rows ([Rows.Gather]).
//
// Builders, Range and Gather all work in two passes. The first ([copier.measure]) takes pieces, which are runs of consecutive slots
// of one source, walks the tree of each column and sums the sizes; the second ([copier.fill]) copies them to the destination. Memory
// is reserved between the two. Messages refer to long values instead of copying them.
//
// A chunk is the body of a message, except for narrow columns, which it stores row by row, see [strip], and for integers, which it
// stores in fewer bytes if they fit, see [form]. The bytes of a message are those of the Arrow IPC format on a little-endian machine:
// buffers start at multiples of 64, padding is zero, a validity bitmap is omitted if every slot is valid, offsets start at 0. Null slots
// are normalized: they contain only zeros, empty values and nulls, so that equal rows have equal bytes.
package rows
