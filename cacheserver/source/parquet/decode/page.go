// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"encoding/binary"
	"errors"
	"io"

	"github.com/apache/arrow-go/v18/parquet"
)

// next advances to the next data page. It returns false after the last one, and an error if not all values of the chunk have been
// read by then.
func (c *Column) next() (bool, error) {
	for {
		p, err := c.pages.next()
		switch {
		case errors.Is(err, io.EOF):
			return false, c.ended()
		case err != nil:
			return false, err
		case p.kind == kindDictionary:
			if err := c.setDictionary(p); err != nil {
				return false, err
			}
		default:
			return true, c.page(p)
		}
	}
}

// ended returns an error if values are missing when there are no more pages.
func (c *Column) ended() error {
	if c.valuesRead != c.chunk.Values && c.chunk.Pages == nil {
		return corrupt("the pages of the column chunk have %d values, the footer says %d", c.valuesRead, c.chunk.Values)
	}
	return nil
}

// over returns an error if values are left over.
func (c *Column) over() error {
	for more := true; more && c.left == 0; {
		var err error
		if more, err = c.next(); err != nil {
			return err
		}
	}
	if c.left > 0 {
		return corrupt("the column chunk goes on after row %d, which the footer or the offset index says is its last", c.endRow)
	}
	return nil
}

// setDictionary decodes the dictionary page.
func (c *Column) setDictionary(p page) error {
	if c.dictionaryRead {
		return corrupt("the column chunk has a second dictionary")
	}
	c.dictionaryRead = true
	if p.encoding != parquet.Encodings.Plain && p.encoding != parquet.Encodings.PlainDict {
		return unknown(p.encoding)
	}
	return c.values.dictionary(p.data, p.n)
}

// settleDictionary keeps the decoded dictionary in step with pages, which drops the dictionary page at a data page that does not use
// it, and reads it again for one that does.
func (c *Column) settleDictionary(p *page) error {
	if !c.pages.dropped {
		return nil
	}
	if !p.usesDictionary() {
		return c.values.dictionary(nil, 0)
	}
	dictionary, err := c.pages.readDictionary()
	if err != nil {
		return err
	}
	return c.values.dictionary(dictionary.data, dictionary.n)
}

// page starts a data page.
func (c *Column) page(p page) (err error) {
	if p.kind == kindDataV1 && c.list {
		if p.reps, p.data, err = levelsV1(p.data, p.repEncoding); err != nil {
			return err
		}
	}
	if p.kind == kindDataV1 && c.maxDef > 0 {
		if p.defs, p.data, err = levelsV1(p.data, p.defEncoding); err != nil {
			return err
		}
	}
	if int64(p.n) > c.chunk.Values-c.valuesRead { // fits: valuesRead is at most Values
		return corrupt("the pages of the column chunk have more than the %d values that the footer says", c.chunk.Values)
	}
	c.valuesRead += int64(p.n)
	c.left = p.n
	if c.list {
		c.reps = newHybrid(p.reps, 1)
		c.defs.begin(p.defs, c.maxDef)
	} else {
		c.def = newHybrid(p.defs, 1)
	}
	if p.encoding == parquet.Encodings.PlainDict { // a deprecated name of the same encoding
		p.encoding = parquet.Encodings.RLEDict
	}
	if err := c.settleDictionary(&p); err != nil {
		return err
	}
	return c.values.page(p.encoding, p.data, p.n)
}

// levelsV1 splits levels, which are preceded by their length, off the data of a page of version 1.
func levelsV1(data []byte, encoding parquet.Encoding) (levels, rest []byte, err error) {
	if encoding != parquet.Encodings.RLE {
		return nil, nil, unknown(encoding)
	}
	if len(data) < 4 {
		return nil, nil, corrupt("levels end early")
	}
	size := binary.LittleEndian.Uint32(data)
	if uint64(size) > uint64(len(data)-4) {
		return nil, nil, corrupt("levels of %d bytes where %d are left", size, len(data)-4)
	}
	return data[4 : 4+size], data[4+size:], nil
}

var errEnds = corrupt("the column chunk ends before its last row")
