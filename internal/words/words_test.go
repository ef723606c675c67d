// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package words

import "testing"

func TestNumbers(t *testing.T) {
	t.Parallel()
	for got, want := range map[string]string{
		Count(0): "0", Count(999): "999", Count(1234): "1.2 k", Count(2.4e9): "2.4 G", Count(0.2): "0.2", Count(12.34): "12.3", Count(0.004): "< 0.1",
		Bytes(1023): "1023 B", Bytes(1536): "1.5 KiB", Bytes(275 << 20): "275 MiB", ExactBytes(1023): "1023 bytes", ExactBytes(5 << 30): "5368709120 bytes (5.0 GiB)", Ratio(.126): "13 %", Ratio(0): "0 %", Ratio(.004): "0.4 %", Ratio(.0001): "< 0.1 %",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestWhoWaits(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		streams             int
		rows, blocked, work float64
		want                string
	}{
		{0, 5, 1, 1, "finished"},
		{2, 5, 0.8, 0.1, "the cache waits for the client"},
		{2, 5, 0.1, 0.8, "the client waits for the cache"},
		{2, 0, 0, 0, "idle"},
		{2, 5, 0, 0, "neither, much"},
	} {
		if got := WhoWaits(tt.streams, tt.rows, tt.blocked, tt.work); got != tt.want {
			t.Errorf("%+v: %s", tt, got)
		}
	}
}

func TestCut(t *testing.T) {
	for _, tt := range []struct{ text, want string }{{"12345678", "12345678"}, {"123456789", "12345..."}, {"1234ö6789", "1234..."}, {"", ""}} {
		if got := Cut(tt.text, 8); got != tt.want {
			t.Errorf("%q is cut to %q, want %q", tt.text, got, tt.want)
		}
	}
}
