// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package reload watches a file and parses it again when it changes.
package reload

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// File is a value parsed from a file. Create it with Open; it may be shared.
type File[T any] struct {
	path     string
	parse    func(text []byte) (T, error)
	current  atomic.Pointer[T]
	rejected atomic.Bool

	mu     sync.Mutex
	read   []byte    // the file's last content, valid or not
	looked time.Time // when Fresh read the file
}

// Open reads the file once. If the file can't be read or parsed now, that is an error; for later changes see Watch.
func Open[T any](path string, parse func(text []byte) (T, error)) (*File[T], error) {
	f := &File[T]{path: path, parse: parse}
	text, err := readFile(path)
	if err != nil {
		return nil, err
	}
	value, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	f.read = text
	f.current.Store(&value)
	return f, nil
}

// readFile returns the content of a regular file. Of anything else it reads nothing: opening or reading a FIFO could block for ever.
func readFile(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // opened for reading: closing loses nothing
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: it is of type %s, want a file", path, info.Mode().Type())
	}
	return io.ReadAll(file)
}

// Get returns the last valid value.
func (f *File[T]) Get() T { return *f.current.Load() }

// Fresh returns the last valid value like Get, after reading the file again if the last call that did is longer ago than every. It is for
// values that are used now and then, and needs no Watch.
func (f *File[T]) Fresh(every time.Duration, log *slog.Logger) T {
	if f.mu.TryLock() {
		defer f.mu.Unlock()
		if now := time.Now(); now.Sub(f.looked) >= every {
			f.looked = now
			f.lookLocked(log, func(T) {})
		}
	}
	return f.Get()
}

// Rejected reports whether the file is currently invalid or missing, so that Get returns an earlier value.
func (f *File[T]) Rejected() bool { return f.rejected.Load() }

// Watch polls the file until ctx ends, and calls changed with each new value. An invalid or missing file is logged, once per content,
// and the last valid value remains. Polling works for a file in a ConfigMap volume, which is a chain of symbolic links. Only one
// goroutine may watch a File.
func (f *File[T]) Watch(ctx context.Context, every time.Duration, log *slog.Logger, changed func(T)) {
	ticker := time.NewTicker(every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			f.look(log, changed)
		}
	}
}

func (f *File[T]) look(log *slog.Logger, changed func(T)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lookLocked(log, changed)
}

func (f *File[T]) lookLocked(log *slog.Logger, changed func(T)) {
	text, err := readFile(f.path)
	if err != nil {
		f.reject(log, nil, err)
		return
	}
	if bytes.Equal(text, f.read) && !f.rejected.Load() { // rejected content may become valid when another file that parse reads changes
		return
	}
	value, err := f.parse(text)
	if err != nil {
		f.reject(log, text, err)
		return
	}
	f.read = text
	f.rejected.Store(false)
	f.current.Store(&value)
	log.Info("file loaded again", "file", f.path)
	changed(value)
}

// reject logs that the file's content is not used; a nil text means that the file can't be read.
func (f *File[T]) reject(log *slog.Logger, text []byte, err error) {
	if f.rejected.Swap(true) && bytes.Equal(text, f.read) {
		return
	}
	f.read = text
	log.Error("file is invalid: the last valid content stays in use", "file", f.path, "error", err)
}

// OpenPair opens the PEM files of a certificate and its key, which are read again when the certificate's file changes.
func OpenPair(certFile, keyFile string) (*File[*tls.Certificate], error) {
	return Open(certFile, func(cert []byte) (*tls.Certificate, error) {
		key, err := readFile(keyFile)
		if err != nil {
			return nil, err
		}
		pair, err := tls.X509KeyPair(cert, key)
		return &pair, err
	})
}

// ClientTLS returns the configuration of a client that verifies servers by the authorities that a function returns at each connection:
// tls.Config.RootCAs can't change. serverName is the DNS name or the IP address that certificates must be for.
func ClientTLS(serverName string, roots func() (*x509.CertPool, error)) *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12, ServerName: serverName,
		InsecureSkipVerify: true, //nolint:gosec // VerifyConnection verifies instead
		VerifyConnection: func(state tls.ConnectionState) error {
			pool, err := roots()
			if err != nil {
				return err
			}
			options := x509.VerifyOptions{DNSName: serverName, Roots: pool, Intermediates: x509.NewCertPool()}
			for _, each := range state.PeerCertificates[1:] {
				options.Intermediates.AddCert(each)
			}
			_, err = state.PeerCertificates[0].Verify(options)
			return err
		},
	}
}
