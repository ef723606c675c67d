// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package fair

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
)

// Settings are the weights and limits of jobs. The zero value has none: all jobs have weight 1.
type Settings struct {
	// Weights of jobs by name, from 1 to MaxWeight; jobs that are not named have 1.
	Weights map[string]int `json:"weights,omitempty"`
	// Namespace is that of the jobs in Weights whose names have no slash: known readers' jobs are named NAMESPACE/JOB.
	Namespace string `json:"namespace,omitempty"`
	// MaxJobs is the number of jobs that may have streams at a time; 0: unlimited.
	MaxJobs int `json:"maxJobs,omitempty"`
	// MaxStreamsPerJob is the number of streams that a job may have at a time; 0: unlimited.
	MaxStreamsPerJob int `json:"maxStreamsPerJob,omitempty"`
}

// MaxWeight is the highest weight.
const MaxWeight = 1000

func (s Settings) weight(job string) float64 {
	if w, ok := s.Weights[job]; ok {
		return float64(w)
	}
	if own, ok := strings.CutPrefix(job, s.Namespace+"/"); ok {
		if w, ok := s.Weights[own]; ok {
			return float64(w)
		}
	}
	return 1
}

// Parse parses settings from a JSON object with the fields of Settings, each optional. Errors name the field, its value and the valid
// values.
func Parse(text []byte) (Settings, error) {
	var s *Settings
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&s); err != nil {
		return Settings{}, fmt.Errorf("want a JSON object with weights, namespace, maxJobs, maxStreamsPerJob: %w", err)
	}
	if s == nil {
		return Settings{}, errors.New("want a JSON object with weights, namespace, maxJobs, maxStreamsPerJob, not null")
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return Settings{}, errors.New("want one JSON object, with nothing behind it")
	}
	for _, job := range slices.Sorted(maps.Keys(s.Weights)) {
		if w := s.Weights[job]; w < 1 || w > MaxWeight {
			return Settings{}, fmt.Errorf("weights: %q: %d, want 1 to %d", job, w, MaxWeight)
		}
	}
	if s.MaxJobs < 0 {
		return Settings{}, fmt.Errorf("maxJobs: %d, want a number, or 0 for no limit", s.MaxJobs)
	}
	if s.MaxStreamsPerJob < 0 {
		return Settings{}, fmt.Errorf("maxStreamsPerJob: %d, want a number, or 0 for no limit", s.MaxStreamsPerJob)
	}
	return *s, nil
}
