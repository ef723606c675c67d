// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"errors"
	"fmt"
	"math"
	"os"
	"strconv"
	"strings"

	"github.com/kubeflow/datacache/internal/cgroup"
)

// units are the suffixes of a memory quantity, as used by Kubernetes and people.
var units = []struct {
	suffix string
	bytes  float64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}, {"TiB", 1 << 40},
	{"Ki", 1 << 10}, {"Mi", 1 << 20}, {"Gi", 1 << 30}, {"Ti", 1 << 40},
	{"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12},
	{"k", 1e3}, {"M", 1e6}, {"G", 1e9}, {"T", 1e12}, {"B", 1}, {"", 1},
}

// processMemory is the memory of a process that is not counted in the budget. When the limit is a percentage, this much is left free
// in small containers.
const processMemory = 80 << 20

// ParseMemory parses a number of bytes, a quantity, or a percentage of the machine's memory.
func ParseMemory(text string) (int64, error) {
	if share, ok := strings.CutSuffix(text, "%"); ok {
		percent, err := parsePercent(text, share)
		if err != nil {
			return 0, err
		}
		limit, err := machineMemory()
		if err == nil && limit <= processMemory {
			err = fmt.Errorf("%q: the container has %d MiB, of which the process itself takes %d: give it more", text, limit>>20, processMemory>>20)
		}
		return min(int64(float64(limit)*percent/100), limit-processMemory), err
	}
	return parseQuantity(text)
}

// ParseShare parses a number of bytes, a quantity, or a percentage of whole.
func ParseShare(text string, whole int64) (int64, error) {
	if share, ok := strings.CutSuffix(text, "%"); ok {
		percent, err := parsePercent(text, share)
		return int64(float64(whole) * percent / 100), err
	}
	return parseQuantity(text)
}

func parsePercent(text, share string) (float64, error) {
	percent, err := strconv.ParseFloat(share, 64)
	if err != nil || !(percent > 0 && percent <= 100) {
		return 0, fmt.Errorf("%q: want a share in (0, 100]%%", text)
	}
	return percent, nil
}

// parseQuantity parses a number of bytes, or a quantity.
func parseQuantity(text string) (int64, error) {
	for _, u := range units {
		number, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseFloat(number, 64)
		if err != nil || !(n*u.bytes >= 1 && n*u.bytes < math.MaxInt64) {
			break
		}
		return int64(n * u.bytes), nil
	}
	return 0, fmt.Errorf("%q: want bytes or a quantity such as 12Gi, 500MB or 90%%", text)
}

// machineMemory is the smallest memory limit of the process's control groups, or the machine's memory if that is less.
func machineMemory() (int64, error) {
	total, err := totalMemory()
	if err != nil {
		return 0, err
	}
	limit, err := cgroup.MemoryLimit(os.DirFS("/"), os.Getpid())
	return min(limit, total), err
}

func totalMemory() (int64, error) {
	text, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, fmt.Errorf("read the machine's memory: %w; give --memory-limit in bytes", err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if len(fields) == 3 && fields[0] == "MemTotal:" {
			kib, err := strconv.ParseInt(fields[1], 10, 64)
			return kib << 10, err
		}
	}
	return 0, errors.New("/proc/meminfo names no MemTotal; give --memory-limit in bytes")
}
