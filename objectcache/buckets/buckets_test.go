// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package buckets

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const sample = `{
  "Bucket": [
    {"Name": "public", "Public": true, "BucketQuota": "100Gi"},
    {"Name": "team", "Public": false, "BucketQuota": "500M", "AllowNamespaces": ["prj-kubernetes", "user-a"]}
  ],
  "TotalLimit": "900Gi"
}`

func TestParse(t *testing.T) {
	t.Parallel()
	got, err := Parse([]byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		TotalLimit: 900 << 30,
		Buckets: map[string]Bucket{
			"public": {Name: "public", Public: true, Quota: 100 << 30},
			"team":   {Name: "team", Quota: 500e6, AllowNamespaces: []string{"prj-kubernetes", "user-a"}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestParsePublishedFile parses the buckets file of PFN's talk, as it is printed there: no outer braces, no TotalLimit, a comma
// after the last item.
func TestParsePublishedFile(t *testing.T) {
	t.Parallel()
	got, err := Parse([]byte(`"Bucket": [
  {
    "Name": "public",
    "Public": true,
    "BucketQuota": "100Gi"
  },
  {
    "Name": "kubekon",
    "Public": false,
    "BucketQuota": "500Gi",
    "AllowNamespaces" : [
      "prj-kubernetes",
      "user-utam0k",
    ]
  }
]
`))
	if err != nil {
		t.Fatal(err)
	}
	want := Config{
		TotalLimit: 600 << 30,
		Buckets: map[string]Bucket{
			"public":  {Name: "public", Public: true, Quota: 100 << 30},
			"kubekon": {Name: "kubekon", Quota: 500 << 30, AllowNamespaces: []string{"prj-kubernetes", "user-utam0k"}},
		},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestMirrorBucketIsOpenToNobody(t *testing.T) {
	t.Parallel()
	c, err := Parse([]byte(`{"Bucket": [{"Name": "models", "Mirror": true, "BucketQuota": "1Gi"}]}`))
	if err != nil || !c.Buckets["models"].Mirror || c.Allows("models", "") || c.Allows("models", "team") {
		t.Errorf("%+v, %v, want a bucket of mirrors, open to no namespace", c, err)
	}
}

func TestTotalLimitOfHugeQuotas(t *testing.T) {
	t.Parallel()
	got, err := Parse([]byte(`{"Bucket": [{"Name": "a", "Public": true, "BucketQuota": "8000P"}, {"Name": "b", "Public": true, "BucketQuota": "8000P"}]}`))
	if err != nil || got.TotalLimit != math.MaxInt64 {
		t.Errorf("%d, %v, want the largest number", got.TotalLimit, err)
	}
}

func TestAllows(t *testing.T) {
	t.Parallel()
	c, err := Parse([]byte(sample))
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		bucket, namespace string
		want              bool
	}{
		{"public", "anyone", true},
		{"team", "prj-kubernetes", true},
		{"team", "user-a", true},
		{"team", "user-b", false},
		{"team", "", false},
		{"none", "user-a", false},
	}
	for _, test := range tests {
		if got := c.Allows(test.bucket, test.namespace); got != test.want {
			t.Errorf("bucket %s, namespace %q: allowed = %v, want %v", test.bucket, test.namespace, got, test.want)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	one := func(bucket string) string { return `{"TotalLimit": "1Gi", "Bucket": [` + bucket + `]}` }
	tests := map[string]struct{ text, want string }{
		"no JSON":            {`buckets:`, "not a buckets file"},
		"a slip of the pen":  {one(`{"Name": "a", "Public": true, "Quota": "1Gi"}`), `unknown field "Quota"`},
		"more text":          {one(`{"Name": "a", "Public": true, "BucketQuota": "1Gi"}`) + "{}", "closing brace"},
		"bad total":          {`{"TotalLimit": "x", "Bucket": [{"Name": "a", "Public": true, "BucketQuota": "1Gi"}]}`, `TotalLimit: "x"`},
		"a slip in YAML":     {"Bucket:\n- {Name: a, Public: true, Quota: 1Gi}\n", "field Quota not found"},
		"two documents":      {"Bucket: []\n---\nBucket: []\n", "second YAML document"},
		"no bucket":          {one(``), "Bucket: empty"},
		"no quota":           {one(`{"Name": "a", "Public": true}`), `Bucket[0].BucketQuota: ""`},
		"quota 0":            {one(`{"Name": "a", "Public": true, "BucketQuota": "0Gi"}`), `BucketQuota: "0Gi"`},
		"quota too big":      {one(`{"Name": "a", "Public": true, "BucketQuota": "9000Pi"}`), `BucketQuota: "9000Pi"`},
		"a path for a name":  {one(`{"Name": "../a", "Public": true, "BucketQuota": "1Gi"}`), `Bucket[0].Name: "../a"`},
		"dots for a name":    {one(`{"Name": "..", "Public": true, "BucketQuota": "1Gi"}`), `Bucket[0].Name: ".."`},
		"twice":              {one(`{"Name": "a", "Public": true, "BucketQuota": "1Gi"},{"Name": "a", "Public": true, "BucketQuota": "1Gi"}`), `Bucket[1].Name: "a" is there twice`},
		"public and limited": {one(`{"Name": "a", "Public": true, "BucketQuota": "1Gi", "AllowNamespaces": ["b"]}`), "Bucket[0].AllowNamespaces"},
		"mirror and public":  {one(`{"Name": "a", "Public": true, "BucketQuota": "1Gi", "Mirror": true}`), "Bucket[0].Mirror: true"},
		"mirror and limited": {one(`{"Name": "a", "BucketQuota": "1Gi", "Mirror": true, "AllowNamespaces": ["b"]}`), "Bucket[0].Mirror: true"},
		"open to nobody":     {one(`{"Name": "a", "BucketQuota": "1Gi"}`), "nobody could use it"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := Parse([]byte(test.text))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q in it", err, test.want)
			}
		})
	}
}

func TestParseQuantity(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"1": 1, "12k": 12e3, "3Ki": 3 << 10, "7M": 7e6, "7Mi": 7 << 20, "2G": 2e9, "1Ti": 1 << 40, "8P": 8e15} {
		if got, err := ParseQuantity(text); err != nil || got != want {
			t.Errorf("%q = %d, %v, want %d", text, got, err, want)
		}
	}
	for _, text := range []string{"", "Gi", "-1Gi", "1.5Gi", "1GB", " 1Gi", "99999999999999999999"} {
		if got, err := ParseQuantity(text); err == nil {
			t.Errorf("%q = %d, want an error", text, got)
		}
	}
}
