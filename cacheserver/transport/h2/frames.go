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

// frameReader reads what a peer sends. A frame is valid until the next one is read, and takes no more than maxRead bytes with its
// CONTINUATION frames. It is for one goroutine.
type frameReader struct {
	framer *http2.Framer
	bound  *io.LimitedReader // what the next frame may take
}

// readBuffer holds requests, which are small.
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

// preface reads what a client's connection begins with, before the first frame.
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

// next reads a frame. asViolation takes its errors.
func (r *frameReader) next() (http2.Frame, error) {
	r.bound.N = maxRead
	return r.framer.ReadFrame()
}

// asViolation turns the errors of http2.Framer into a violation where they are one.
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
