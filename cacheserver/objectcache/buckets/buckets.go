// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package buckets reads the file that says which buckets there are, how big they may grow and who may use them.
package buckets

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
)

// Config is a parsed buckets file. It is not changed after Parse and may be shared.
type Config struct {
	// Buckets by name.
	Buckets map[string]Bucket
	// TotalLimit is how many bytes all buckets together may take on one node's disk.
	TotalLimit int64
}

// Bucket is one set of objects with its own limit and its own users.
type Bucket struct {
	Name string
	// Public opens the bucket, for reading and writing, to every authenticated namespace.
	Public bool
	// Quota is how many bytes of one node's disk the bucket may take.
	Quota int64
	// AllowNamespaces are those that a bucket which is not Public is open to.
	AllowNamespaces []string
}

// Allows says whether pods of the namespace may read and write the bucket. It is false for a bucket that is not in the file,
// so the answer does not reveal whether the bucket exists.
func (c Config) Allows(bucket, namespace string) bool {
	b, ok := c.Buckets[bucket]
	return ok && (b.Public || slices.Contains(b.AllowNamespaces, namespace))
}

// file is the JSON format, that of PFN's Simple Cache Service ("Distributed Cache Empowers AI/ML Workloads on Kubernetes
// Cluster", KubeCon NA 2024).
type file struct {
	Bucket []struct {
		Name            string
		Public          bool
		BucketQuota     string
		AllowNamespaces []string
	}
	TotalLimit string
}

// goodName matches names that are one segment of a URL path and of a file path, without escapes.
var goodName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// Parse reads a buckets file. An error names the field, its value and what would do.
func Parse(text []byte) (Config, error) {
	var f file
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&f); err != nil {
		return Config{}, fmt.Errorf("not a buckets file: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Config{}, errors.New("text follows the buckets file's closing brace: take it out")
	}
	total, err := parseQuantity(f.TotalLimit)
	if err != nil {
		return Config{}, fmt.Errorf("TotalLimit: %w", err)
	}
	c := Config{Buckets: make(map[string]Bucket, len(f.Bucket)), TotalLimit: total}
	for i, b := range f.Bucket {
		quota, err := parseQuantity(b.BucketQuota)
		if err != nil {
			return Config{}, fmt.Errorf("Bucket[%d].BucketQuota: %w", i, err)
		}
		bucket := Bucket{Name: b.Name, Public: b.Public, Quota: quota, AllowNamespaces: b.AllowNamespaces}
		if err := c.add(bucket, fmt.Sprintf("Bucket[%d]", i)); err != nil {
			return Config{}, err
		}
	}
	if len(c.Buckets) == 0 {
		return Config{}, errors.New("Bucket: empty, want at least one bucket")
	}
	return c, nil
}

// add validates one bucket of the file and registers it. place is its position, for errors.
func (c Config) add(b Bucket, place string) error {
	if !goodName.MatchString(b.Name) {
		return fmt.Errorf("%s.Name: %q, want up to 63 letters, digits, dots, dashes and underscores, the first a letter or a digit", place, b.Name)
	}
	if _, twice := c.Buckets[b.Name]; twice {
		return fmt.Errorf("%s.Name: %q is there twice, want each bucket once", place, b.Name)
	}
	if b.Public && len(b.AllowNamespaces) > 0 {
		return fmt.Errorf("%s.AllowNamespaces: %q, but %s is Public: drop one of the two", place, b.AllowNamespaces, b.Name)
	}
	if !b.Public && len(b.AllowNamespaces) == 0 {
		return fmt.Errorf("%s.AllowNamespaces: empty, and %s is not Public: nobody could use it; name namespaces or make it Public", place, b.Name)
	}
	c.Buckets[b.Name] = b
	return nil
}
