// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

// A column chunk has one dictionary page, its first. Writers stop using the dictionary when it gets too large. For columns of large
// values it then takes as much memory as a page. So it is dropped at the first data page that does not use it, and read again if a
// later page does, which the format allows and writers avoid.

// dropDictionary frees the dictionary's memory; readDictionary reads it again.
func (p *pages) dropDictionary() {
	if len(p.kept) > 0 {
		p.freeKept()
		p.dropped = true
	}
}

// readDictionary reads a dropped dictionary again.
func (p *pages) readDictionary() (page, error) {
	again := pages{
		from: p.from, at: p.dictionaryAt, end: p.end, most: p.most, codec: p.codec, streams: p.streams, mem: p.mem, window: p.window, room: p.room,
	}
	dictionary, err := again.read()
	if err == nil {
		p.kept, again.kept, p.dropped = again.kept, nil, false
		p.heldKept, again.heldKept = again.heldKept, 0
	}
	again.close()
	return dictionary, err
}

func (p *pages) freeKept() {
	for i := range p.kept {
		p.free(&p.kept[i])
	}
	p.kept = nil
	p.giveBack(&p.heldKept)
}
