// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"bufio"
	"bytes"
	"errors"
)

// replacer is a writer that replaces a text in what is written through it. Close writes the rest.
type replacer struct {
	to       *bufio.Writer
	old, new []byte
	rest     []byte // the end of what was written, which may be the beginning of old
}

// Write writes p, except for an end that may be the beginning of old.
func (r *replacer) Write(p []byte) (int, error) {
	text := append(r.rest, p...)
	for {
		at := bytes.Index(text, r.old)
		if at < 0 {
			break
		}
		if _, err := r.to.Write(text[:at]); err != nil {
			return 0, err
		}
		if _, err := r.to.Write(r.new); err != nil {
			return 0, err
		}
		text = text[at+len(r.old):]
	}
	keep := min(len(text), len(r.old)-1)
	_, err := r.to.Write(text[:len(text)-keep])
	r.rest = append(r.rest[:0], text[len(text)-keep:]...)
	return len(p), err
}

// Close writes the rest.
func (r *replacer) Close() error {
	if _, err := r.to.Write(r.rest); err != nil {
		return err
	}
	return r.to.Flush()
}

const (
	// maxDepth is how deep the values of a JSON text may be nested.
	maxDepth = 1000
	// maxHeld is the maximum length of a field's name or value that stripper compares or holds back.
	maxHeld = 256
)

var errDepth = errors.New("the JSON text is nested too deeply")

// stripper is a writer of a JSON text that leaves out the fields xetHash of objects whose field size is not that of a large file, and
// white space between values. It holds no more of the text than the fields that it decides about. A text that is not JSON comes out
// somehow.
type stripper struct {
	to     *bufio.Writer
	large  func() // is called for each field that stays
	frames []frame

	inString, escaped bool
	isName            bool   // the string is a field's name
	token             []byte // the string, up to maxHeld+1 bytes, or the value of a field that is held
	field             fieldKind
}

// frame is an array or object that has begun.
type frame struct {
	isObject, hasFields, wantsName bool
	size                           []byte // the digits of the field size
	hash                           []byte // the value of the field xetHash, with quotes
}

// fieldKind says what is done with the value that is being read.
type fieldKind int

const (
	fieldOther fieldKind = iota
	fieldSize            // noted
	fieldHash            // held
)

// Write writes a part of the text.
func (s *stripper) Write(p []byte) (int, error) {
	for i, b := range p {
		if err := s.next(b); err != nil {
			return i, err
		}
	}
	return len(p), nil
}

// Close writes what is left in the buffer.
func (s *stripper) Close() error { return s.to.Flush() }

func (s *stripper) next(b byte) error {
	if s.inString {
		return s.inside(b)
	}
	switch b {
	case ' ', '\t', '\r', '\n':
		return nil
	case '"':
		s.inString, s.token = true, s.token[:0]
		s.isName = s.top().wantsName
		if s.isName || s.field == fieldHash {
			s.token = append(s.token, b)
			return nil
		}
	case '{', '[':
		if len(s.frames) >= maxDepth {
			return errDepth
		}
		if err := s.release(); err != nil { // not a hash
			return err
		}
		s.field = fieldOther
		s.frames = append(s.frames, frame{isObject: b == '{', wantsName: b == '{'})
	case '}', ']':
		return s.end(b)
	case ',':
		s.field = fieldOther
		if top := s.top(); top.isObject {
			top.wantsName = true
			return nil // written before the next field that stays
		}
	case ':':
		if s.field == fieldHash {
			return nil
		}
	default:
		return s.scalar(b)
	}
	return s.to.WriteByte(b)
}

// top is the innermost array or object.
func (s *stripper) top() *frame {
	if len(s.frames) == 0 {
		return &frame{}
	}
	return &s.frames[len(s.frames)-1]
}

// scalar takes a byte of a number or word.
func (s *stripper) scalar(b byte) error {
	top := s.top()
	switch {
	case s.field == fieldHash:
		if len(top.hash) < maxHeld {
			top.hash = append(top.hash, b)
		}
		return nil
	case s.field == fieldSize && len(top.size) < maxHeld:
		top.size = append(top.size, b)
	}
	return s.to.WriteByte(b)
}

// inside takes a byte of a string.
func (s *stripper) inside(b byte) error {
	ends := b == '"' && !s.escaped
	s.escaped = b == '\\' && !s.escaped
	s.inString = !ends
	switch {
	case s.isName:
		return s.name(b, ends)
	case s.field == fieldHash:
		if len(s.token) < maxHeld {
			s.token = append(s.token, b)
		}
		if ends {
			s.top().hash = append([]byte(nil), s.token...)
		}
		return nil
	}
	return s.to.WriteByte(b)
}

// name takes a byte of a field's name, which is held until it is known or too long.
func (s *stripper) name(b byte, ends bool) error {
	if len(s.token) > maxHeld { // written already
		if ends {
			s.top().wantsName = false
		}
		return s.to.WriteByte(b)
	}
	s.token = append(s.token, b)
	if !ends && len(s.token) <= maxHeld {
		return nil
	}
	top := s.top()
	top.wantsName = !ends
	switch {
	case ends && string(s.token) == `"xetHash"`:
		s.field = fieldHash
		return nil
	case ends && string(s.token) == `"size"`:
		s.field, top.size = fieldSize, top.size[:0]
	}
	return s.writeName(top, s.token)
}

// writeName writes a comma, if there is a field before, and a field's name.
func (s *stripper) writeName(top *frame, name []byte) error {
	if top.hasFields {
		if err := s.to.WriteByte(','); err != nil {
			return err
		}
	}
	top.hasFields = true
	_, err := s.to.Write(name)
	return err
}

// release writes the name of a field xetHash that has an array or object, which is not a hash.
func (s *stripper) release() error {
	if s.field != fieldHash {
		return nil
	}
	return s.writeName(s.top(), []byte(`"xetHash":`))
}

// end ends an array or object. The hash of a large file is written as its last field.
func (s *stripper) end(b byte) error {
	s.field = fieldOther
	top := s.top()
	if len(top.hash) > 0 && isLarge(string(top.size)) {
		s.large()
		if err := s.writeName(top, append([]byte(`"xetHash":`), top.hash...)); err != nil {
			return err
		}
	}
	if len(s.frames) > 0 {
		s.frames = s.frames[:len(s.frames)-1]
	}
	return s.to.WriteByte(b)
}
