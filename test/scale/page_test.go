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
	onCluster = `
## The group on a cluster

` + "`make scale-cluster`" + ` measures, on a real Kubernetes of two nodes with the stock LeaderWorkerSet, a cache of two data nodes and one of as many
as it was given. The last column is linear in the pods. Data nodes look up one name, their head's; the group's Service has an EndpointSlice
for each 100 pods.

`
	objects = `
## The object cache at the size of its model

The [object cache](object-cache.md) is made after one that has 268 million objects on 55 nodes and answers 37,000 requests a second.
` + "`make bench NAME=objects`" + ` measures one node's objects, and what a request costs; [Performance](performance.md#object-cache) says what is assumed.

`
	outro = `
## Limits

| | at most | where it is checked |
|---|---|---|
| data nodes of a cache | 1,000 | the DataCache, the TrainJob, the head |
| splits (row groups) of a table | 2,000,000 | the head, when it has planned |
| a TrainJob's ranks, times the data nodes that each reads from in lanes: a 32nd, and 2 | 1,000,000 | the TrainJob's ` + "`numNodes`" + ` |
| 280 KB for each data node | the head's memory | the TrainJob's ` + "`HEAD_MEM`" + ` |
| 280 KB for each data node and 400 bytes for each split, when a head restarts | 90 % of the head's memory | the head, when it has planned |

A head has 128 MiB for clients. Any number of ranks may ask at the same moment: some 1,900 are connected at a time, or 480 by TLS, and the
others wait, up to a minute; connections without a call are closed for them. Answers are made and sent in the order of the calls, as far as
8 MiB go; a client that is slow to read its answer keeps others waiting for a second at most.
`
)
