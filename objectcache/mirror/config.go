// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package mirror serves images and models of upstream servers from the object cache.
package mirror

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/kubeflow/datacache/objectcache/mirror/hub"
	"github.com/kubeflow/datacache/objectcache/mirror/oci"
)

// defaultStale is the default of staleIfError.
const defaultStale = 24 * time.Hour

// Config is a parsed mirrors file. It is not changed after Parse and may be shared.
type Config struct {
	Hub    hub.Config // without Upstream: no hub is mirrored
	Images oci.Config // without Registries: no registry is mirrored
}

// file is the format, YAML or JSON.
type file struct {
	StaleIfError *string `yaml:"staleIfError"`
	Hub          *struct {
		Upstream string `yaml:"upstream"`
		Bucket   string `yaml:"bucket"`
		Tokens   string `yaml:"tokens"`
	} `yaml:"hub"`
	Images *struct {
		Bucket     string `yaml:"bucket"`
		Registries []struct {
			Name     string `yaml:"name"`
			Upstream string `yaml:"upstream"`
		} `yaml:"registries"`
	} `yaml:"images"`
}

// Parse parses a mirrors file. An error names the field, its value and what is accepted.
func Parse(text []byte) (Config, error) {
	var f file
	decoder := yaml.NewDecoder(bytes.NewReader(text))
	decoder.KnownFields(true)
	if err := decoder.Decode(&f); err != nil && !errors.Is(err, io.EOF) {
		return Config{}, fmt.Errorf("not a mirrors file: %w", err)
	}
	stale := defaultStale
	if f.StaleIfError != nil {
		var err error
		if stale, err = time.ParseDuration(*f.StaleIfError); err != nil || stale < 0 {
			return Config{}, fmt.Errorf("staleIfError: %q, want a duration such as 24h, or 0s", *f.StaleIfError)
		}
	}
	if f.Hub == nil && f.Images == nil {
		return Config{}, errors.New("neither hub nor images: want at least one of them")
	}
	c := Config{Hub: hub.Config{StaleIfError: stale}, Images: oci.Config{StaleIfError: stale}}
	return c, errors.Join(f.setHub(&c.Hub), f.setImages(&c.Images))
}

func (f *file) setHub(c *hub.Config) (err error) {
	if f.Hub == nil {
		return nil
	}
	if f.Hub.Bucket == "" {
		return errors.New("hub.bucket: empty, want a bucket of the buckets file that has Mirror: true")
	}
	c.Bucket, c.Tokens = f.Hub.Bucket, f.Hub.Tokens
	c.Upstream, err = base("hub.upstream", f.Hub.Upstream)
	return err
}

func (f *file) setImages(c *oci.Config) error {
	if f.Images == nil {
		return nil
	}
	if f.Images.Bucket == "" {
		return errors.New("images.bucket: empty, want a bucket of the buckets file that has Mirror: true")
	}
	if len(f.Images.Registries) == 0 {
		return errors.New("images.registries: empty, want the registries to mirror")
	}
	c.Bucket, c.Registries = f.Images.Bucket, map[string]string{}
	for i, r := range f.Images.Registries {
		if r.Name == "" {
			return fmt.Errorf("images.registries[%d].name: empty, want the registry's host as in names of images, such as docker.io", i)
		}
		if r.Upstream == "" {
			r.Upstream = "https://" + r.Name
		}
		upstream, err := base(fmt.Sprintf("images.registries[%d].upstream", i), r.Upstream)
		if err != nil {
			return err
		}
		c.Registries[r.Name] = upstream
	}
	return nil
}

// base checks the URL of an upstream server and returns it without a slash at the end.
func base(field, text string) (string, error) {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" || u.RawQuery != "" || u.User != nil {
		return "", fmt.Errorf("%s: %q, want a URL such as https://HOST", field, text)
	}
	return strings.TrimSuffix(text, "/"), nil
}
