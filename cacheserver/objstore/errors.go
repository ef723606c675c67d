// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"strings"
	"time"

	"github.com/kubeflow/datacache/internal/words"
)

// ErrChanged is wrapped by the error of a read that found another version of the object, or a shorter file, than the one that was
// opened.
var ErrChanged = errors.New("changed while it was read")

// ErrTooLong says that what is to be read exceeds a limit.
var ErrTooLong = errors.New("it is over the limit")

// ErrUnavailable is wrapped by the error of a read that failed with a temporary error after all its attempts.
var ErrUnavailable = errors.New("the store does not answer")

// unavailableError is an error that matches ErrUnavailable.
type unavailableError struct{ error }

func (e unavailableError) Unwrap() error        { return e.error }
func (e unavailableError) Is(target error) bool { return target == ErrUnavailable }

var (
	errStalled   = errors.New("the request stalled")
	errProtocol  = errors.New("the answer is not what was asked for")
	errBeyondEnd = errors.New("the range lies beyond the object's end")
)

// maxQuoted bounds the text of an SDK's error about credentials.
const maxQuoted = 1 << 10

// credentialsError says that there are no credentials to send. It matches fs.ErrPermission and is not retried, since the SDKs have
// done so.
type credentialsError struct{ err error }

// Error is one line of bounded length: an SDK's text may quote the whole answer of a server.
func (e *credentialsError) Error() string {
	return "no usable credentials: " + words.Cut(strings.Join(strings.Fields(words.Cut(e.err.Error(), 4*maxQuoted)), " "), maxQuoted)
}

func (e *credentialsError) Unwrap() error { return e.err }

func (e *credentialsError) Is(target error) bool { return target == fs.ErrPermission }

// refusal is an error response of a store.
type refusal struct {
	status  int    // of HTTP
	code    string // the store's error code, such as SlowDown; may be empty
	message string
	region  string // the bucket's region, if the response named it
}

func (r *refusal) Error() string {
	text := fmt.Sprint(r.status)
	if r.code != "" {
		text += " " + r.code
	} else if t := http.StatusText(r.status); t != "" {
		text += " " + t
	}
	if r.message != "" {
		text += ": " + r.message
	}
	return text
}

// Is maps a refusal to fs.ErrNotExist, fs.ErrPermission and the like.
func (r *refusal) Is(target error) bool {
	switch target {
	case fs.ErrNotExist:
		return r.status == http.StatusNotFound
	case fs.ErrPermission:
		return r.denied()
	case errBeyondEnd:
		return r.status == http.StatusRequestedRangeNotSatisfiable
	case ErrChanged:
		return r.status == http.StatusPreconditionFailed
	}
	return false
}

// denied reports whether the credentials were rejected. S3 reports an expired or malformed token with status 400.
func (r *refusal) denied() bool {
	switch r.code {
	case "ExpiredToken", "InvalidToken", "TokenRefreshRequired":
		return true
	}
	return r.status == http.StatusUnauthorized || r.status == http.StatusForbidden && !r.passing()
}

// passing reports whether the store asks for a retry.
func (r *refusal) passing() bool {
	switch r.code {
	case "SlowDown", "RequestTimeout", "InternalError", "ServiceUnavailable", "ServerBusy",
		"Throttling", "ThrottlingException", "RequestThrottled", "TooManyRequests", "OperationTimedOut":
		return true
	}
	switch r.status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusInternalServerError,
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// failed counts the final failure of a read and formats its error: what was read, what went wrong, the number of attempts and what to
// do.
func (s *Store) failed(uri string, tries int, elapsed time.Duration, err error) error {
	s.stats.failures.Add(1)
	after := ""
	if tries > 1 {
		after = fmt.Sprintf(" (gave up after %d tries in %s)", tries, elapsed.Round(time.Millisecond))
	}
	what, advice := explain(uri, err)
	said := fmt.Errorf("read %s: %w%s: %s", uri, err, after, advice)
	if what != "" {
		said = fmt.Errorf("read %s: %s (%w)%s: %s", uri, what, err, after, advice)
	}
	if loc, _ := parse(uri); tries > 0 && loc.scheme != schemeFile && passing(err) {
		return unavailableError{said}
	}
	return said
}

// explain returns a description of err, if err itself has none, and advice on what to do.
func explain(uri string, err error) (what, advice string) {
	var r *refusal
	var none *credentialsError
	switch {
	case errors.Is(err, ErrChanged):
		if errors.As(err, &r) {
			what = ErrChanged.Error()
		}
		return what, "table files must not be rewritten in place; load again once the writer is done"
	case errors.As(err, &none):
		return "", "set " + credentialsHint(uri)
	case errors.Is(err, fs.ErrPermission):
		return "access denied", "check " + credentialsHint(uri)
	case errors.Is(err, fs.ErrNotExist):
		return "not found", missingHint(err)
	case errors.As(err, &r) && r.region != "":
		return "the bucket is in region " + r.region, "set the S3 region to " + r.region
	case errors.As(err, &r) && r.passing(), errors.Is(err, errStalled):
		return "", "the store is overloaded or unwell; load with fewer requests at a time, or later"
	case errors.As(err, &r):
		return "the store refused the request", "check the URI, the endpoint and the region"
	case errors.Is(err, errProtocol):
		return "", "check that the endpoint is a store that answers ranges, with no proxy that rewrites them"
	}
	if loc, _ := parse(uri); loc.scheme == schemeFile {
		return "", "give a readable file"
	}
	return "", "check the network, the endpoint and its certificate"
}

// missingHint returns advice for an object that does not exist.
func missingHint(err error) string {
	var r *refusal
	if errors.As(err, &r) && (r.code == "NoSuchBucket" || r.code == "ContainerNotFound") {
		return "check the bucket's name, the region and the endpoint"
	}
	return "check the URI; if a table names it, the file was deleted after the snapshot was written: pick a current snapshot"
}

// credentialsHint tells where the credentials for uri come from.
func credentialsHint(uri string) string {
	loc, err := parseFolder(uri)
	if err != nil || loc.scheme == schemeFile {
		return "the file's permissions and owner"
	}
	object := loc.bucket + "/" + loc.key
	switch loc.scheme {
	case schemeS3:
		return "the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or the service account's role) and that they allow s3:GetObject on " + object +
			"; without s3:ListBucket, S3 says the same of an object that does not exist"
	case schemeGS:
		return "the credentials (GOOGLE_APPLICATION_CREDENTIALS or the service account's identity) and that they allow storage.objects.get on " + object
	}
	if loc.scheme == schemeHub {
		repo, _, _ := strings.Cut(loc.bucket, "@")
		return "the token (HF_TOKEN, or HF_TOKEN_PATH) and that its account may read the data set " + repo + ": the owner of a gated one grants access on the data set's page"
	}
	return "the credentials (account key, SAS token or identity) and that they may read blobs of " + strings.TrimPrefix(loc.host+"/"+object, "/")
}

// canceled returns the error of a read of uri that ctx ended.
func canceled(ctx context.Context, uri string) error {
	return fmt.Errorf("read %s: %w", uri, context.Cause(ctx))
}
