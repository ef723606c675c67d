// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package s3test

import (
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
)

// signed extracts key and region from an Authorization header of signature version 4.
var signed = regexp.MustCompile(`Credential=([^/]+)/\d+/([^/]+)/`)

// serve logs a request and answers it, with a fault if one applies.
func (s *Server) serve(w http.ResponseWriter, r *http.Request) {
	entry, fault := s.arrived(r)
	logged := &logger{ResponseWriter: w, server: s, entry: entry}
	if fault != nil {
		fault.serve(s, logged, r)
		return
	}
	s.answer(logged, r)
	logged.note(http.StatusOK) // a response without a body
}

// arrived logs a request and returns the fault that applies, nil if none.
func (s *Server) arrived(r *http.Request) (*Request, *Injected) {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	entry := &Request{Method: r.Method, Bucket: bucket, Key: key, Range: r.Header.Get("Range")}
	if m := signed.FindStringSubmatch(r.Header.Get("Authorization")); m != nil {
		entry.AccessKeyID, entry.Region = m[1], m[2]
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log = append(s.log, entry)
	for _, f := range s.faults {
		if f.dueLocked(entry) {
			entry.Fault = f.fault.String()
			return entry, f
		}
	}
	return entry, nil
}

// answer serves requests without faults: with gofakes3, plus features of S3 that it lacks. It does not support If-Match, and rejects
// suffix ranges longer than the object.
func (s *Server) answer(w http.ResponseWriter, r *http.Request) {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	match, last := r.Header.Get("If-Match"), lastBytes(r.Header.Get("Range"))
	if r.Method == http.MethodGet && (match != "" || last > 0) {
		if obj, err := s.backend.HeadObject(bucket, key); err == nil {
			if match != "" && match != `"`+hex.EncodeToString(obj.Hash)+`"` {
				refuse(w, http.StatusPreconditionFailed, "PreconditionFailed")
				return
			}
			if last > obj.Size && obj.Size > 0 {
				r = r.Clone(r.Context())
				r.Header.Set("Range", fmt.Sprintf("bytes=-%d", obj.Size))
			}
		}
	}
	s.s3.ServeHTTP(w, r)
}

// lastBytes is n of a header "bytes=-n", else 0.
func lastBytes(header string) int64 {
	digits, ok := strings.CutPrefix(header, "bytes=-")
	if !ok {
		return 0
	}
	n, err := strconv.ParseInt(digits, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// refuse sends an error in S3's format.
func refuse(w http.ResponseWriter, status int, code string) {
	text, err := xml.Marshal(struct {
		XMLName xml.Name `xml:"Error"`
		Code    string
		Message string
	}{Code: code, Message: "an answer of s3test"})
	if err != nil {
		panic(err) // a struct of strings can always be encoded
	}
	w.Header().Set("Content-Type", "application/xml")
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	w.WriteHeader(status)
	_, _ = w.Write(text) // an error means that the client has gone; its test notices
}

// logger records a response's header in the log before the client can see it.
type logger struct {
	http.ResponseWriter
	server *Server
	entry  *Request
}

// Unwrap returns the underlying ResponseWriter for http.ResponseController.
func (l *logger) Unwrap() http.ResponseWriter { return l.ResponseWriter }

func (l *logger) WriteHeader(status int) {
	l.note(status)
	l.ResponseWriter.WriteHeader(status)
}

func (l *logger) Write(p []byte) (int, error) {
	l.note(http.StatusOK) // net/http's default if no status was set
	return l.ResponseWriter.Write(p)
}

func (l *logger) note(status int) {
	l.server.mu.Lock()
	defer l.server.mu.Unlock()
	if l.entry.Status != 0 {
		return
	}
	l.entry.Status = status
	if n, err := strconv.ParseInt(l.Header().Get("Content-Length"), 10, 64); err == nil {
		l.entry.Bytes = n
	}
}
