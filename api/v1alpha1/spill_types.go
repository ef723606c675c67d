// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import "k8s.io/apimachinery/pkg/api/resource"

// Spill describes the volume of a data node's pod for its rows. Unset ephemeral and hostPath: an emptyDir, on the disk of the pod's machine
// that Kubernetes counts as ephemeral storage.
//
// +kubebuilder:validation:XValidation:rule="!has(self.ephemeral) || !has(self.hostPath)",message="ephemeral and hostPath exclude each other: leave one of them out, or both for an emptyDir"
type Spill struct {
	// limit is how much the files with rows of one data node may take, such as 200Gi. It is the size of a claim; an emptyDir has 256Mi more,
	// and the pod requests both as ephemeral-storage.
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('16Mi')) >= 0",message="limit must be at least 16Mi: it counts bytes, such as 200Gi"
	Limit resource.Quantity `json:"limit"`

	// ephemeral is a claim that is made with each pod and deleted with it.
	// +optional
	Ephemeral *SpillClaim `json:"ephemeral,omitempty"`

	// hostPath is a folder of the machines. The rows stay in it when pods end, and are taken over by a pod of the same data node on the same
	// machine.
	// +optional
	HostPath *SpillFolder `json:"hostPath,omitempty"`
}

// SpillClaim describes the claims of data nodes.
type SpillClaim struct {
	// storageClassName is the class of the claims. Unset: the cluster's default class.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	StorageClassName *string `json:"storageClassName,omitempty"`
}

// SpillFolder is a folder of the machines. It must exist, and user 65532 must be able to write to it; each data node makes one of its own
// below it.
type SpillFolder struct {
	// path of the folder, such as /mnt/nvme/datacache.
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^/`
	// +kubebuilder:validation:XValidation:rule="self.split('/').all(part, part != '..')",message="path must be absolute, without .."
	Path string `json:"path"`
}
