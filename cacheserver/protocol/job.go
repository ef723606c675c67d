// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
)

// jobName matches the names of jobs. A TrainJob's name matches, and so does an IP address.
var jobName = regexp.MustCompile(`^[A-Za-z0-9._:/-]{1,63}$`)

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
