// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

// frontCoded decodes DELTA_BYTE_ARRAY: each value is a prefix of the previous value and a suffix (Parquet format, Encodings.md).
type frontCoded struct {
	shares []uint32 // prefix lengths
	owns   []uint32 // suffix lengths
	data   []byte
	before []byte
}

// begin starts a page of at most n values.
func (s *frontCoded) begin(data []byte, n int) (err error) {
	if s.shares, data, err = lengths(data, n); err != nil {
		return err
	}
	if s.owns, s.data, err = lengths(data, n); err != nil {
		return err
	}
	if len(s.owns) != len(s.shares) {
		return corrupt("%d prefixes of %d values", len(s.shares), len(s.owns))
	}
	s.before = s.before[:0]
	return nil
}

// next returns the next value, which is valid until the next call.
func (s *frontCoded) next() ([]byte, error) {
	if len(s.owns) == 0 {
		return nil, errFew
	}
	share, own := int(s.shares[0]), int(s.owns[0])
	if share > len(s.before) || own > len(s.data) {
		return nil, corrupt("value of %d bytes of the one before, which has %d, and of %d where %d are left", share, len(s.before), own, len(s.data))
	}
	s.before = append(s.before[:share], s.data[:own]...)
	s.shares, s.owns, s.data = s.shares[1:], s.owns[1:], s.data[own:]
	return s.before, nil
}
