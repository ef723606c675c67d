// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package scale

// intro and outro are the text of docs/scale.md around the tables.
const (
	intro = `
# How a cache scales

` + "`make scale-model`" + ` writes this page: one real head, as a process of its own, with data nodes that speak the protocol but hold no
rows. What a data node costs is on [Benchmarks](benchmarks.md).
`
	outro = `
## Limits

| | at most | where it is checked |
|---|---|---|
| data nodes of a cache | 1,000 | the DataCache, the TrainJob, the head |
| splits (row groups) of a table | 2,000,000 | the head, when it has planned |
| memory of the head | 256 MiB for clients, and 0.3 KB for each split | |

A connection, a call and its answer count 64 KiB, 16 KiB and twice the answer's length among the 256 MiB: of more than some 700 ranks that ask
a head of 300 data nodes for a shuffled epoch at the same moment, some are told RESOURCE_EXHAUSTED and ask again. Data nodes are not
affected.
`
)
