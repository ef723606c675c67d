// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package parquet

import (
	"bytes"
	"encoding/base64"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/parquet/metadata"
)

// originKey is the key under which writers store the Arrow schema that they had, as an IPC message in base64.
const originKey = "ARROW:schema"

// maxOrigin bounds the length of a stored schema.
const maxOrigin = 1 << 20

// originOf returns the Arrow schema that a file's writer had; nil if the file has none that can be read: it only adds to Parquet's own
// schema.
func originOf(stored metadata.KeyValueMetadata) (origin *arrow.Schema) {
	text := stored.FindValue(originKey)
	if text == nil || len(*text) > maxOrigin {
		return nil
	}
	message, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(*text, "="))
	if err != nil {
		return nil
	}
	defer func() {
		if recover() != nil { // over a corrupt message
			origin = nil
		}
	}()
	r, err := ipc.NewReader(bytes.NewReader(message))
	if err != nil {
		return nil
	}
	defer r.Release()
	return r.Schema()
}

// refine sets what origin, the writer's field of a column, adds to the column's type: the length of lists, durations, and the zone of
// timestamps.
func (c *fileColumn) refine(origin arrow.Field) {
	if origin.Name != c.field.Name {
		return
	}
	c.refineAs(origin.Type)
}

func (c *fileColumn) refineAs(origin arrow.DataType) {
	switch own := c.field.Type.(type) {
	case *arrow.ListType:
		lists, ok := origin.(arrow.ListLikeType)
		if !ok || origin.ID() == arrow.MAP || len(c.kids) != 1 {
			return
		}
		if fixed, ok := origin.(*arrow.FixedSizeListType); ok {
			c.size = fixed.Len()
		}
		c.kids[0].refineAs(lists.Elem())
	case *arrow.StructType:
		fields, ok := origin.(*arrow.StructType)
		if !ok || fields.NumFields() != len(c.kids) {
			return
		}
		for i, kid := range c.kids {
			kid.refine(fields.Field(i))
		}
	case *arrow.Int64Type:
		if origin.ID() == arrow.DURATION {
			c.origin = origin
		}
	case *arrow.TimestampType:
		stamp, ok := origin.(*arrow.TimestampType)
		if ok && own.TimeZone != "" && stamp.TimeZone != "" {
			c.origin = &arrow.TimestampType{Unit: own.Unit, TimeZone: stamp.TimeZone}
		}
	}
}
