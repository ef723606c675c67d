// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package buckets parses the file that lists the buckets, their quotas and who may use them.
package buckets

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Config is a parsed buckets file. It is not changed after Parse and may be shared.
type Config struct {
	// Buckets by name.
	Buckets map[string]Bucket
	// TotalLimit is the maximum number of bytes of all buckets together on one node's disk.
	TotalLimit int64
}

// Bucket is one set of objects with its own limit and its own users.
type Bucket struct {
	Name string
	// Public grants every authenticated namespace read and write access.
	Public bool
	// Quota is the maximum number of bytes of the bucket on one node's disk.
	Quota int64
	// AllowNamespaces lists the namespaces with access to a bucket that is not Public.
	AllowNamespaces []string
	// Mirror marks a bucket of the mirrors (package mirror), which no namespace has access to.
	Mirror bool
}

// Allows reports whether pods of the namespace may read and write the bucket. It is false for a bucket that is not in the file, so
// the answer does not reveal whether the bucket exists.
func (c Config) Allows(bucket, namespace string) bool {
	b, ok := c.Buckets[bucket]
	return ok && (b.Public || slices.Contains(b.AllowNamespaces, namespace))
}

// file is the JSON format, that of PFN's Simple Cache Service ("Distributed Cache Empowers AI/ML Workloads on Kubernetes
// Cluster", KubeCon NA 2024).
type file struct {
	Bucket []struct {
		Name            string   `yaml:"Name"`
		Public          bool     `yaml:"Public"`
		BucketQuota     string   `yaml:"BucketQuota"`
		AllowNamespaces []string `yaml:"AllowNamespaces"`
		Mirror          bool     `yaml:"Mirror"`
	} `yaml:"Bucket"`
	TotalLimit string `yaml:"TotalLimit"` // default: the sum of the quotas
}

// goodName matches names that can be one segment of a URL path and of a file path without escaping.
var goodName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)

// Parse parses a buckets file, in JSON or YAML. An error names the field, its value and what is accepted.
func Parse(text []byte) (Config, error) {
	f, err := decode(text)
	if err != nil {
		return Config{}, err
	}
	c := Config{Buckets: make(map[string]Bucket, len(f.Bucket))}
	for i, b := range f.Bucket {
		quota, err := ParseQuantity(b.BucketQuota)
		if err != nil {
			return Config{}, fmt.Errorf("Bucket[%d].BucketQuota: %w", i, err)
		}
		bucket := Bucket{Name: b.Name, Public: b.Public, Quota: quota, AllowNamespaces: b.AllowNamespaces, Mirror: b.Mirror}
		if err := c.add(bucket, fmt.Sprintf("Bucket[%d]", i)); err != nil {
			return Config{}, err
		}
	}
	if len(c.Buckets) == 0 {
		return Config{}, errors.New("Bucket: empty, want at least one bucket")
	}
	if f.TotalLimit == "" {
		for _, b := range c.Buckets {
			c.TotalLimit += min(b.Quota, math.MaxInt64-c.TotalLimit)
		}
		return c, nil
	}
	if c.TotalLimit, err = ParseQuantity(f.TotalLimit); err != nil {
		return Config{}, fmt.Errorf("TotalLimit: %w", err)
	}
	return c, nil
}

// decode parses JSON, and anything that is not JSON as YAML: that allows comments, trailing commas, and the outer braces to be
// omitted.
func decode(text []byte) (f file, err error) {
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	err = decoder.Decode(&f)
	var syntax *json.SyntaxError
	if errors.As(err, &syntax) || errors.Is(err, io.ErrUnexpectedEOF) || isScalar(err) {
		return decodeYAML(text)
	}
	if err != nil {
		return file{}, fmt.Errorf("not a buckets file: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return file{}, errors.New("text follows the buckets file's closing brace: take it out")
	}
	return f, nil
}

// isScalar reports whether the JSON decoder found a value that is not an object, such as the first key of a YAML mapping.
func isScalar(err error) bool {
	var mismatch *json.UnmarshalTypeError
	return errors.As(err, &mismatch) && mismatch.Field == ""
}

func decodeYAML(text []byte) (f file, err error) {
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&f); err != nil {
		return file{}, fmt.Errorf("not a buckets file: %w", err)
	}
	if err := decoder.Decode(&file{}); !errors.Is(err, io.EOF) {
		return file{}, errors.New("a second YAML document follows the buckets file: take it out")
	}
	return f, nil
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
	if b.Mirror && (b.Public || len(b.AllowNamespaces) > 0) {
		return fmt.Errorf("%s.Mirror: true, but %s has Public or AllowNamespaces too: only mirrors read such a bucket; drop one of them", place, b.Name)
	}
	if !b.Public && !b.Mirror && len(b.AllowNamespaces) == 0 {
		return fmt.Errorf("%s.AllowNamespaces: empty, and %s is not Public: nobody could use it; name namespaces, or make it Public or Mirror", place, b.Name)
	}
	c.Buckets[b.Name] = b
	return nil
}
