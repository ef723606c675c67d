// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package decode

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/kubeflow/datacache/test/kit/seedtest"
)

// TestValidIsThatOfTheStandardLibrary compares all sequences of up to three bytes, at each place in a word, and random ones.
func TestValidIsThatOfTheStandardLibrary(t *testing.T) {
	check := func(b []byte) {
		if got, want := valid(b), utf8.Valid(b); got != want {
			t.Fatalf("valid(%q) is %t, want %t", b, got, want)
		}
		if n := asciiPrefix(b); n == len(b) != bytes.ContainsFunc(b, func(r rune) bool { return r >= utf8.RuneSelf }) == false {
			t.Fatalf("asciiPrefix(%q) is %d", b, n)
		}
	}
	for first := 0x80; first < 0x100; first++ {
		for second := range 0x100 {
			for _, third := range []byte{'a', 0x7f, 0x80, 0x9f, 0xa0, 0xbf, 0xc0, 0xff} {
				for _, fourth := range []byte{'a', 0x80, 0xbf, 0xc2} {
					place := (first + second) % 9
					b := append(bytes.Repeat([]byte("a"), place), byte(first), byte(second), third, fourth)
					check(b)
					check(append(b, "aaaaaaaa"...))
				}
			}
		}
	}
	r := seedtest.New(t)
	for range 20_000 {
		var b []byte
		for range r.IntN(30) {
			switch r.IntN(4) {
			case 0:
				b = append(b, byte(r.IntN(256)))
			case 1:
				b = utf8.AppendRune(b, rune(r.IntN(0x11_0000)))
			case 2:
				b = utf8.AppendRune(b, rune(r.IntN(0x3000)))
			default:
				b = append(b, "plain text, 32 bytes of it, in a row"[:r.IntN(36)]...)
			}
		}
		check(b)
	}
}

func TestCheckText(t *testing.T) {
	tests := map[string]struct {
		values []string
		bad    int // -1: none
	}{
		"none":                   {nil, -1},
		"empty":                  {[]string{"", ""}, -1},
		"ASCII":                  {[]string{"a", strings.Repeat("b", 100), ""}, -1},
		"characters":             {[]string{"ü", "", "日本", "𝄞", "a"}, -1},
		"a lone byte":            {[]string{"a", "b\xff", "c"}, 1},
		"a character cut in two": {[]string{"a\xc3", "\xbcb"}, 0},
		"cut before an empty":    {[]string{"ok", "\xe6\x97", "", "\xa5"}, 1},
		"cut at the end":         {[]string{"日", "本\xe6"}, 1},
		"a surrogate":            {[]string{"\xed\xa0\x80"}, 0},
		"too long":               {[]string{strings.Repeat("x", 50), "\xc0\x80"}, 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			data, ends := []byte("\xff"), []int32(nil) // what is before the start is not checked
			for _, v := range tt.values {
				data = append(data, v...)
				ends = append(ends, int32(len(data)))
			}
			err := CheckText(data, 1, ends)
			var bad *TextError
			switch {
			case errors.As(err, &bad):
				if bad.Index != tt.bad {
					t.Errorf("string %d: %v", bad.Index, err)
				}
			case tt.bad >= 0:
				t.Errorf("error %v, want one about string %d", err, tt.bad)
			}
		})
	}
}

func BenchmarkCheckText(b *testing.B) {
	for name, text := range map[string]string{
		"ASCII": "a review of a book, 100% ASCII. ", "German": "Grüße aus München, schöne Sträuße ", "Japanese": "日本語の文章は長い。",
		"Emoji": "😀😃 mixed 😄",
	} {
		data := []byte(strings.Repeat(text, 20_000))
		var ends []int32
		for at := len(text); at <= len(data); at += len(text) {
			ends = append(ends, int32(at))
		}
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if err := CheckText(data, 0, ends); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+"/utf8.Valid", func(b *testing.B) {
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if !utf8.Valid(data) {
					b.Fatal("invalid")
				}
			}
		})
	}
}
