// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package put

import (
	"slices"

	"github.com/kubeflow/datacache/cacheserver/protocol"
	"github.com/kubeflow/datacache/cacheserver/protocol/peer"
)

// freeing has, by id, the dropped datasets that some data nodes may still have. A drop ends when no node has the dataset: a node that kept its files
// could otherwise report the dataset to a head that has restarted and does not know of the drop.
type freeing map[string]*dropped

type dropped struct {
	name, fingerprint string
	nodes             []bool // by node: whether it may have rows
}

func (f freeing) add(p *put) {
	f[p.ID] = &dropped{p.Name, p.as.Fingerprint, slices.Repeat([]bool{true}, p.Nodes)}
}

// freed records that a node has nothing of a put.
func (f freeing) freed(node int, id string) {
	if d := f[id]; d != nil {
		if d.nodes[node] = false; !slices.Contains(d.nodes, true) {
			delete(f, id)
		}
	}
}

// remind orders a node that has joined to free datasets, since an earlier order may have been lost.
func (f freeing) remind(c *Catalog, node int) {
	for id, d := range f {
		if d.nodes[node] {
			c.tell(node, peer.ToNode{Unput: &peer.Unput{ID: id}})
		}
	}
}

// Freeing returns the data nodes that may still have rows of a dataset that was dropped, such as "1, 3"; "" if none has.
func Freeing(c *Catalog, ref string) string {
	name, of := protocol.SplitReference(ref)
	var nodes []int
	for _, d := range c.freeing {
		for node, left := range d.nodes {
			if left && d.name == name && (of == "" || of == d.fingerprint) && !slices.Contains(nodes, node) {
				nodes = append(nodes, node)
			}
		}
	}
	return ranges(nodes)
}
