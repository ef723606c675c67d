// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package h2

import (
	"bufio"
	"errors"
	"fmt"
	"io"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// frameReader reads a peer's frames. A frame is valid until the next one is read; with its CONTINUATION frames it has at most maxRead
// bytes. It is not safe for concurrent use.
type frameReader struct {
	framer *http2.Framer
	bound  *io.LimitedReader // limits what the next frame may read
}

// readBuffer is small, since requests are.
const readBuffer = 4 << 10

func newFrameReader(from io.Reader) frameReader {
	bound := &io.LimitedReader{R: bufio.NewReaderSize(from, readBuffer)}
	framer := http2.NewFramer(nil, bound)
	framer.SetReuseFrames()
	framer.SetMaxReadFrameSize(defaultFrame)
	framer.MaxHeaderListSize = maxHeaderList
	framer.ReadMetaHeaders = hpack.NewDecoder(maxTable, nil)
	return frameReader{framer, bound}
}

// preface reads the client's connection preface, which precedes the first frame.
func (r *frameReader) preface() error {
	r.bound.N = int64(len(http2.ClientPreface))
	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(r.bound, preface); err != nil {
		return fmt.Errorf("preface: %w", err)
	}
	if string(preface) != http2.ClientPreface {
		return violation{http2.ErrCodeProtocol, fmt.Sprintf("the connection starts with %.24q: want HTTP/2", preface)}
	}
	return nil
}

// next reads a frame. Its errors are to be passed to asViolation.
func (r *frameReader) next() (http2.Frame, error) {
	r.bound.N = maxRead
	return r.framer.ReadFrame()
}

// asViolation converts the protocol errors of http2.Framer to a violation.
func (r *frameReader) asViolation(err error) error {
	var code http2.ConnectionError
	switch {
	case r.bound.N <= 0 && (errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)):
		return violated(http2.ErrCodeEnhanceYourCalm, "a header block with its CONTINUATION frames of more than %d bytes", maxRead)
	case errors.Is(err, http2.ErrFrameTooLarge):
		return violated(http2.ErrCodeFrameSize, "a frame longer than %d bytes", defaultFrame)
	case errors.As(err, &code):
		reason := "a malformed frame"
		if detail := r.framer.ErrorDetail(); detail != nil {
			reason = detail.Error()
		}
		return violation{http2.ErrCode(code), reason}
	}
	return err
}
