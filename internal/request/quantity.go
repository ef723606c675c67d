// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package request

import (
	"fmt"
	"regexp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// leastMemory is the smallest plausible amount of memory: Kubernetes parses 2 as two bytes and 512m as half a byte.
var leastMemory = resource.MustParse("1Mi")

// Notations of other programs that people use by mistake: 2 Gb, 2GB, 512m, 4 cores.
var (
	memoryGuess = regexp.MustCompile(`(?i)^\s*([0-9]+(?:\.[0-9]+)?)\s*([kmgtp])i?b?(?:ytes)?\s*$`)
	cpuGuess    = regexp.MustCompile(`(?i)^\s*([0-9]+(?:\.[0-9]+)?)\s*v?(?:cores?|cpus?)?\s*$`)
)

// parseQuantity parses an amount of cpu or memory; if it is invalid, reason says why and suggests the amount that was probably meant.
func parseQuantity(text string, of corev1.ResourceName) (amount resource.Quantity, reason string) {
	amount, err := resource.ParseQuantity(text)
	switch {
	case err != nil && of == corev1.ResourceMemory:
		return amount, `must be a Kubernetes quantity such as "2Gi"` + meantMemory(text)
	case err != nil:
		return amount, `must be a Kubernetes quantity such as "2" or "500m"` + meantCPU(text)
	case amount.Sign() <= 0:
		return amount, "must be more than 0"
	case of == corev1.ResourceMemory && amount.Cmp(leastMemory) < 0:
		return amount, `must be at least "1Mi", for it counts bytes and m stands for thousandths` + meantMemory(text)
	}
	return amount, ""
}

func meantMemory(text string) string {
	parts := memoryGuess.FindStringSubmatch(text)
	if parts == nil {
		return ""
	}
	return fmt.Sprintf(": write %q", parts[1]+strings.ToUpper(parts[2])+"i")
}

func meantCPU(text string) string {
	parts := cpuGuess.FindStringSubmatch(text)
	if parts == nil {
		return ""
	}
	return fmt.Sprintf(": write %q", parts[1])
}
