// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"maps"
	"math"
	"os"
	"testing"
	"testing/fstest"
)

const (
	mountV2     = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
	mountV1     = "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
	mountHybrid = "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
	none        = math.MaxInt64
)

func TestMemoryLimit(t *testing.T) {
	for _, tt := range []struct {
		name, groups, mounts string
		files                map[string]string // below /sys/fs/cgroup
		want                 int64
	}{
		{"no control groups", "", "", nil, none},
		{"none mounted", "0::/a\n", "22 1 8:1 / / rw - ext4 /dev/a rw\n", map[string]string{"memory.max": "7"}, none},
		{"version 2, the root has no files", "0::/\n", mountV2, nil, none},
		{"version 2, no limit", "0::/a\n", mountV2, map[string]string{"a/memory.max": "max\n", "a/memory.high": "max\n"}, none},
		{"version 2, own", "0::/system.slice/job.service\n", mountV2, map[string]string{"system.slice/job.service/memory.max": "400\n"}, 400},
		{"version 2, an ancestor", "0::/a/b/c\n", mountV2, map[string]string{"a/b/c/memory.max": "max\n", "a/memory.max": "400\n"}, 400},
		{"version 2, the smallest", "0::/a/b/c\n", mountV2, map[string]string{"a/b/c/memory.max": "500\n", "a/b/memory.max": "400\n", "a/memory.max": "900\n"}, 400},
		{"version 2, not a sibling's", "0::/a/b\n", mountV2, map[string]string{"a/c/memory.max": "1\n", "a/bb/memory.max": "2\n", "b/memory.max": "3\n"}, none},
		{"version 2, memory.high", "0::/a/b\n", mountV2, map[string]string{"a/memory.max": "500\n", "a/b/memory.high": "300\n"}, 300},
		{"version 2, in a namespace of its own", "0::/\n", mountV2, map[string]string{"memory.max": "400\n"}, 400},
		{"version 2, moved out of its namespace", "0::/../x\n", mountV2, map[string]string{"memory.max": "400\n", "x/memory.max": "1\n"}, 400},
		{
			"version 2, a mounted subtree", "0::/kube/pod/x\n", "30 23 0:26 /kube/pod /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			map[string]string{"memory.max": "600\n", "x/memory.max": "400\n", "kube/pod/x/memory.max": "1\n"}, 400,
		},
		{
			"version 2, a subtree of which the process isn't", "0::/kube/pods\n", "30 23 0:26 /kube/pod /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			map[string]string{"memory.max": "600\n", "s/memory.max": "1\n"}, 600,
		},
		{
			"version 2, mounted from outside of the namespace", "0::/\n", "30 23 0:26 /../.. /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			map[string]string{"a/b/memory.max": "max\n", "a/b/cgroup.procs": "4\n42\n", "a/memory.max": "400\n", "a/cgroup.procs": "", "z/memory.max": "1\n", "z/cgroup.procs": "142\n"}, 400,
		},
		{"version 1", "8:pids:/\n4:cpu,memory:/slurm/job\n", mountV1, map[string]string{"memory/memory.limit_in_bytes": "9223372036854771712\n", "memory/slurm/memory.limit_in_bytes": "500\n", "memory/slurm/job/memory.limit_in_bytes": "400\n"}, 400},
		{"version 1, only of memory", "4:cpu:/a\n", mountV1, map[string]string{"memory/a/memory.limit_in_bytes": "400\n"}, none},
		{"hybrid, the limit is in version 1", "4:memory:/a\n0::/b\n", mountV1 + mountHybrid, map[string]string{"memory/a/memory.limit_in_bytes": "400\n"}, 400},
		{"hybrid, the limit is in version 2", "4:cpu:/a\n0::/b\n", mountHybrid, map[string]string{"unified/b/memory.max": "400\n"}, 400},
		{"a mount with a blank", "0::/a\n", `30 23 0:26 / /sys/fs/cgroup/x\040y rw - cgroup2 none rw` + "\n", map[string]string{"x y/a/memory.max": "400\n"}, 400},
	} {
		t.Run(tt.name, func(t *testing.T) {
			files := fstest.MapFS{"proc/self/cgroup": {Data: []byte(tt.groups)}, "proc/self/mountinfo": {Data: []byte(tt.mounts)}}
			for name, text := range maps.All(tt.files) {
				files["sys/fs/cgroup/"+name] = &fstest.MapFile{Data: []byte(text)}
			}
			if got, err := MemoryLimit(files, 42); err != nil || got != tt.want {
				t.Errorf("limit %d, error %v; want %d", got, err, tt.want)
			}
		})
	}
}

func TestOfThisMachine(t *testing.T) {
	if limit, err := MemoryLimit(os.DirFS("/"), os.Getpid()); err != nil || limit < 1<<20 {
		t.Errorf("limit %d, error %v", limit, err)
	}
}
