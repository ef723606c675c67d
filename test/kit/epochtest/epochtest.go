// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

// Package epochtest lists the rows that tests expect of an epoch.
package epochtest

import (
	"math"

	"github.com/kubeflow/datacache/cacheserver/epoch"
)

// Rows returns the row indices of a share of an epoch, in order.
func Rows(e epoch.Epoch, s epoch.Share) ([]uint64, error) {
	cursor, err := epoch.NewCursor(e, s)
	if err != nil {
		return nil, err
	}
	var rows []uint64
	var runs [256]epoch.Run
	for n, _ := cursor.Next(runs[:], math.MaxUint64); n > 0; n, _ = cursor.Next(runs[:], math.MaxUint64) {
		for _, r := range runs[:n] {
			for row := r.First; row < r.First+r.Rows; row++ {
				rows = append(rows, row)
			}
		}
	}
	return rows, nil
}
