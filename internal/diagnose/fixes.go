// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package diagnose

// fixes has what to do for each reason of a DataCache's conditions Ready and Read. docs/troubleshoot.md explains them. A reason that is not here,
// such as PodsStarting or Loading, needs nothing but time.
var fixes = map[string]string{
	"NodeNotReady":               "nothing, if another machine has room for the pod: it is replaced there; otherwise add one",
	"Unschedulable":              "request less (WORKER_MEM, WORKER_CPU, SPILL_LIMIT), use more data nodes (CLUSTER_SIZE), or add machines; for a claim, correct its class (SPILL_STORAGE_CLASS)",
	"ImagePullBackOff":           "make the image available to the nodes, or set another: docs/install.md, Images",
	"ErrImagePull":               "make the image available to the nodes, or set another: docs/install.md, Images",
	"InvalidImageName":           "correct the image's name: docs/install.md, Images",
	"ErrImageNeverPull":          "load the image onto the nodes, or let them pull it (imagePullPolicy)",
	"CreateContainerConfigError": "create the Secret or ConfigMap, or its key, that the message names, in the cache's namespace",
	"CreateContainerError":       "as the message says; it is the container runtime's",
	"RunContainerError":          "as the message says; it is the container runtime's",
	"CrashLoopBackOff":           "read the log of the pod that the message names",
	"FailedCreate":               "as the message says: a larger quota, or other settings of the pods (spec.arrow.head.template)",
	"FailedMount":                "as the message says: the Secret, volume or folder that it names",
	"FailedBinding":              "as the message says: a larger quota of claims, or a smaller SPILL_LIMIT",
	"Evicted":                    "as the message says: the machine's disk is full, or the pod took more of it than it requests (ephemeral-storage)",
	"OOMKilled":                  "raise the memory (WORKER_MEM), or cache fewer columns or rows",
	"endpoint":                   "correct the endpoint of the store or the catalog (s3.endpoint, CATALOG_URI) if the message names a wrong one; otherwise look at it, at DNS, and for a NetworkPolicy or proxy between it and the cache's pods",
	"HeadUnreachable":            "look for a NetworkPolicy or service mesh between datacache's manager and port 8080 of the head, and at the head's log",
	"NotRead":                    "if the ranks neither compute, evaluate nor save for so long, one of them hangs: read their logs, and dump their stacks (py-spy dump --pid 1)",
	"RanksWait":                  "look at `kubectl datacache top` and the logs of the cache's data nodes",
	"NameTaken":                  "delete the object that the message names, or give the TrainJob another name",
	"Refused":                    "as the message says: a quota, a missing right, a policy or a webhook; it is tried again every 10 s",
	"Deriving":                   "wait until the step has made the dataset; the log of its pods says more: kubectl logs job/<DataCache>-cache-derive",
	"DeriveFailed":               "correct spec.arrow.derive, or make a TrainJob with a correct DERIVE; the whole log of the step: kubectl logs job/<DataCache>-cache-derive",
	"LoadFailed":                 "correct what the message names, then create the TrainJob anew",
	"FluidMissing":               "install Fluid, or have its runtime's controller enabled: docs/fluid.md",
	"FluidNotReady":              "as the message says: docs/fluid.md",
	"WarmUpFailed":               "read the log of the DataLoad's pod",
	"FuseUnavailable":            "look at the pod that the message names: docs/fluid.md",
	"WorkersUnavailable":         "look at the pods that the message names: docs/fluid.md",
}
