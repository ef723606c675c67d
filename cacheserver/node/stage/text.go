// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package stage

import (
	"errors"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/kubeflow/datacache/cacheserver/source/parquet/decode"
)

// textOf checks that the strings of an array are valid UTF-8, those of its children too. Strings in null slots don't matter.
func textOf(d arrow.ArrayData) error {
	dt := d.DataType()
	for {
		extension, ok := dt.(arrow.ExtensionType)
		if !ok {
			break
		}
		dt = extension.StorageType()
	}
	if d.Len() == 0 {
		return nil
	}
	switch dt.ID() {
	case arrow.STRING:
		return checkStrings(d, arrow.Int32Traits.CastFromBytes(d.Buffers()[1].Bytes())[:d.Len()+1])
	case arrow.LARGE_STRING:
		return checkStrings(d, arrow.Int64Traits.CastFromBytes(d.Buffers()[1].Bytes())[:d.Len()+1])
	}
	for _, kid := range d.Children() {
		if err := textOf(kid); err != nil {
			return err
		}
	}
	return nil
}

func checkStrings[O int32 | int64](d arrow.ArrayData, offsets []O) error {
	if d.Buffers()[2] == nil {
		return nil
	}
	data := d.Buffers()[2].Bytes()
	err := decode.CheckText(data, offsets[0], offsets[1:])
	if err == nil || d.Buffers()[0] == nil {
		return err
	}
	valid := d.Buffers()[0].Bytes()
	var wrong *decode.TextError
	for i := range d.Len() {
		if valid[i>>3]>>(i&7)&1 == 0 {
			continue
		}
		if err := decode.CheckText(data, offsets[i], offsets[i+1:i+2]); errors.As(err, &wrong) {
			wrong.Index = i
			return wrong
		}
	}
	return nil
}
