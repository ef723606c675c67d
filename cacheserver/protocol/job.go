// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package protocol

import (
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
