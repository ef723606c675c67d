// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package buckets

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// units are the suffixes of Kubernetes quantities of bytes.
var units = []struct {
	suffix string
	bytes  int64
}{
	{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40}, {"Pi", 1 << 50},
	{"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}, {"P", 1e15}, {"", 1},
}

// ParseQuantity parses a positive integer number of bytes, such as 100Gi.
func ParseQuantity(text string) (int64, error) {
	for _, u := range units {
		digits, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(digits, 10, 64)
		if err != nil || n <= 0 || n > math.MaxInt64/u.bytes {
			break
		}
		return n * u.bytes, nil
	}
	return 0, fmt.Errorf("%q, want a whole number of bytes above 0, such as 100Gi or 500M", text)
}
