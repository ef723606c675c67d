// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
)

// JobPattern is the regular expression of the name of a job. A TrainJob's name matches it, and so does an IP address. The CRD has the
// same expression for the keys of spec.sharing.weights.
const JobPattern = `^[A-Za-z0-9._:/-]{1,63}$`

var jobName = regexp.MustCompile(JobPattern)

// ValidJob returns an error if name can't be the name of a job.
func ValidJob(name string) error {
	if !jobName.MatchString(name) {
		return fmt.Errorf("%.64q, want 1 to 63 letters, digits, '.', '_', ':', '/' or '-'", name)
	}
	return nil
}

// parseJob returns the field job of a command, "" if it has none.
func parseJob(cmd []byte) (string, error) {
	var body struct {
		Job *string `json:"job"`
	}
	if err := json.Unmarshal(cmd, &body); err != nil {
		return "", commandError(err)
	}
	if body.Job == nil {
		return "", nil
	}
	if err := ValidJob(*body.Job); err != nil {
		return "", errors.New("command: job: " + err.Error() + "; leave the field out for the client's address")
	}
	return *body.Job, nil
}
