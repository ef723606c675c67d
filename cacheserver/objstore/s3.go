// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package objstore

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"sync/atomic"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"
)

const defaultRegion = "us-east-1"

// s3Client is the client for all S3 buckets that share credentials.
type s3Client struct {
	api    *s3.Client
	region string
}

// newS3Client makes a client from cfg; what cfg leaves out comes from the SDK's own configuration chain.
func newS3Client(ctx context.Context, cfg S3, client *http.Client) (*s3Client, error) {
	switch cfg.Addressing {
	case "", "path", "virtual":
	default:
		return nil, fmt.Errorf("S3 addressing %q: use path, virtual or leave it empty", cfg.Addressing)
	}
	var options []func(*config.LoadOptions) error
	if cfg.Region != "" {
		options = append(options, config.WithRegion(cfg.Region))
	}
	switch {
	case cfg.Anonymous:
		options = append(options, config.WithCredentialsProvider(aws.AnonymousCredentials{}))
	case cfg.AccessKeyID != "" && cfg.SecretAccessKey != "":
		options = append(options, config.WithCredentialsProvider(
			credentials.NewStaticCredentialsProvider(cfg.AccessKeyID, cfg.SecretAccessKey, cfg.SessionToken)))
	case cfg.AccessKeyID != "" || cfg.SecretAccessKey != "":
		return nil, &credentialsError{errors.New("of the S3 access key only the id or only the secret is set")}
	}
	loaded, err := config.LoadDefaultConfig(ctx, options...)
	if err != nil {
		return nil, fmt.Errorf("AWS configuration: %w", err)
	}
	if loaded.Region == "" {
		loaded.Region = defaultRegion
	}
	if !cfg.Anonymous {
		loaded.Credentials = namedCredentials{loaded.Credentials}
	}
	api := s3.NewFromConfig(loaded, func(o *s3.Options) {
		if cfg.Endpoint != "" {
			o.BaseEndpoint = &cfg.Endpoint
		}
		o.UsePathStyle = cfg.Addressing == "path" || cfg.Addressing == "" && o.BaseEndpoint != nil
		o.HTTPClient = client
		o.Retryer = aws.NopRetryer{} // Store.retry does the retries and counts them
		o.ResponseChecksumValidation = aws.ResponseChecksumValidationWhenRequired
		o.DisableLogOutputChecksumValidationSkipped = true
	})
	return &s3Client{api: api, region: loaded.Region}, nil
}

// namedCredentials wraps the errors of a provider in credentialsError.
type namedCredentials struct{ aws.CredentialsProvider }

func (n namedCredentials) Retrieve(ctx context.Context) (aws.Credentials, error) {
	c, err := n.CredentialsProvider.Retrieve(ctx)
	if err != nil && ctx.Err() == nil {
		return c, &credentialsError{err}
	}
	return c, err
}

// s3Bucket is one bucket. If a response names another region, later requests go there.
type s3Bucket struct {
	client *s3Client
	name   string
	region atomic.Pointer[string]
}

func (b *s3Bucket) get(ctx context.Context, key string, want span, tag string) (answer, error) {
	return redirected(b, func() (answer, error) { return b.getOnce(ctx, key, want, tag) })
}

// redirected makes a request, and again if the response names another region.
func redirected[T any](b *s3Bucket, request func() (T, error)) (T, error) {
	a, err := request()
	var r *refusal
	if !errors.As(err, &r) || r.region == "" || r.region == b.currentRegion() {
		return a, err
	}
	b.region.Store(&r.region)
	return request()
}

func (b *s3Bucket) list(ctx context.Context, prefix, token string) (page, error) {
	return redirected(b, func() (page, error) { return b.listOnce(ctx, prefix, token) })
}

func (b *s3Bucket) listOnce(ctx context.Context, prefix, token string) (page, error) {
	in := &s3.ListObjectsV2Input{Bucket: &b.name, Prefix: &prefix}
	if token != "" {
		in.ContinuationToken = &token
	}
	out, err := b.client.api.ListObjectsV2(ctx, in, func(o *s3.Options) { o.Region = b.currentRegion() })
	if err != nil {
		return page{}, s3Error(err)
	}
	p := page{entries: make([]listed, len(out.Contents))}
	for i, o := range out.Contents {
		p.entries[i] = listed{key: aws.ToString(o.Key), size: aws.ToInt64(o.Size), tag: aws.ToString(o.ETag), modified: aws.ToTime(o.LastModified)}
	}
	if aws.ToBool(out.IsTruncated) {
		p.next = aws.ToString(out.NextContinuationToken)
	}
	return p, nil
}

func (b *s3Bucket) getOnce(ctx context.Context, key string, want span, tag string) (answer, error) {
	in := &s3.GetObjectInput{Bucket: &b.name, Key: &key}
	if h := want.header(); h != "" {
		in.Range = &h
	}
	if tag != "" {
		in.IfMatch = &tag
	}
	out, err := b.client.api.GetObject(ctx, in, func(o *s3.Options) { o.Region = b.currentRegion() })
	if err != nil {
		return answer{}, s3Error(err)
	}
	length := int64(-1)
	if out.ContentLength != nil {
		length = *out.ContentLength
	}
	a := newAnswer(out.Body, aws.ToString(out.ContentRange), length, aws.ToString(out.ETag))
	a.modified = aws.ToTime(out.LastModified)
	return a, nil
}

func (b *s3Bucket) currentRegion() string {
	if r := b.region.Load(); r != nil {
		return *r
	}
	return b.client.region
}

// s3Error converts an error response of S3 to a refusal; other errors are returned unchanged.
func s3Error(err error) error {
	var none *credentialsError // it may wrap a response too, but one of the metadata service
	var response *smithyhttp.ResponseError
	if errors.As(err, &none) || !errors.As(err, &response) || response.HTTPResponse() == nil {
		return err
	}
	r := &refusal{
		status: response.HTTPStatusCode(),
		region: response.HTTPResponse().Header.Get("X-Amz-Bucket-Region"),
	}
	if r.status < 300 { // no response (0) or a truncated one: the connection broke
		var sent *url.Error
		if errors.As(err, &sent) {
			return sent // has all the information of the SDK's wrapper
		}
		return err
	}
	var api smithy.APIError
	if errors.As(err, &api) && api.ErrorCode() != "UnknownError" {
		r.code, r.message = api.ErrorCode(), api.ErrorMessage()
	}
	return r
}
