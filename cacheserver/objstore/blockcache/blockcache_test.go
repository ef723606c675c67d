// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package blockcache

import (
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func TestPagesAreOfOneBlock(t *testing.T) {
	data := make([]byte, 3*PageSize+10)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data) // does not fail
	length := int64(len(data))
	form := pagesOf("block", length)
	stored, err := io.ReadAll(form.encode(data))
	if err != nil || int64(len(stored)) != form.size(length) {
		t.Fatalf("%d bytes, %v, want %d", len(stored), err, form.size(length))
	}
	read := func(form pages, stored []byte) error {
		all := extent{length: length}
		got := make([]byte, length)
		err := form.read(bytes.NewReader(stored), all, all, got)
		if err == nil && !bytes.Equal(got, data) {
			t.Error("the bytes differ")
		}
		return err
	}
	if err := read(form, stored); err != nil {
		t.Error(err)
	}
	if err := read(pagesOf("another", length), stored); !errors.Is(err, errPage) {
		t.Errorf("another block's name: %v, want %v", err, errPage)
	}
	swapped := bytes.Clone(stored)
	page := PageSize + sumSize
	copy(swapped, stored[page:2*page])
	copy(swapped[page:], stored[:page])
	if err := read(form, swapped); !errors.Is(err, errPage) {
		t.Errorf("two pages swapped: %v, want %v", err, errPage)
	}
}

func TestConfigCheck(t *testing.T) {
	tests := map[string]struct {
		c    Config
		want string
	}{
		"none":       {Config{}, ""},
		"good":       {Config{URL: "http://cache:80", Bucket: "b", TokenFile: "t"}, ""},
		"slash":      {Config{URL: "http://cache/", Bucket: "b", TokenFile: "t"}, ""},
		"https":      {Config{URL: "https://cache", CAFile: "ca.crt", Bucket: "b", TokenFile: "t"}, ""},
		"a CA":       {Config{URL: "http://cache", CAFile: "ca.crt", Bucket: "b", TokenFile: "t"}, `authorities "ca.crt"`},
		"ftp":        {Config{URL: "ftp://cache", Bucket: "b", TokenFile: "t"}, "ftp://cache"},
		"a path":     {Config{URL: "http://cache/v1", Bucket: "b", TokenFile: "t"}, "http://cache/v1"},
		"no scheme":  {Config{URL: "cache:80", Bucket: "b", TokenFile: "t"}, "cache:80"},
		"no URL":     {Config{URL: "", Bucket: "b", TokenFile: "t"}, `URL ""`},
		"no bucket":  {Config{URL: "http://cache", Bucket: "", TokenFile: "t"}, `bucket ""`},
		"bad bucket": {Config{URL: "http://cache", Bucket: "a/b", TokenFile: "t"}, `bucket "a/b"`},
		"no token":   {Config{URL: "http://cache", Bucket: "b", TokenFile: ""}, "token file"},
	}
	for name, test := range tests {
		err := test.c.Check()
		if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
			t.Errorf("%s: %v, want %q", name, err, test.want)
		}
	}
}

func TestNoTagNoObjectCache(t *testing.T) {
	c := New(Config{}, &Counters{}, time.Now)
	for tag, want := range map[string]bool{`"abc"`: true, `W/"abc"`: false, "": false} {
		if got := c.Takes(tag); got != want {
			t.Errorf("tag %s: %v, want %v", tag, got, want)
		}
	}
	var none *Cache
	if none.Takes(`"abc"`) {
		t.Error("without an object cache something is read through it")
	}
}
