// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// ArrowCache names the table or its files and describes the pods that hold it. The fields that decide which rows are in memory have the tag
// rows:"yes" and are immutable: to change them, make a new DataCache. TrainJobs share a cache if these fields are equal.
// +kubebuilder:validation:XValidation:rule="[has(self.metadataLocation), has(self.catalog), has(self.source)].exists_one(set, set) || (has(self.puts) && self.puts.enabled && !has(self.metadataLocation) && !has(self.catalog) && !has(self.source))",message="exactly one of metadataLocation, catalog and source must be set, or none and puts.enabled for a cache of what clients put"
// +kubebuilder:validation:XValidation:rule="has(self.table) == (has(self.metadataLocation) || has(self.catalog)) || (has(self.catalog) && has(self.puts) && self.puts.enabled)",message="table must be set, unless source is or puts.enabled, with a catalog or alone"
// +kubebuilder:validation:XValidation:rule="has(self.table) || has(self.source) || (!has(self.columns) && !has(self.filter) && !has(self.snapshot) && !has(self.trustManifests))",message="a cache of what clients put has no table to select from: leave columns, filter, snapshot and trustManifests out"
// +kubebuilder:validation:XValidation:rule="!has(self.puts) || !has(self.puts.keep) || self.puts.keep != 'Disk' || has(self.spill)",message="puts.keep: Disk needs files: set spill"
// +kubebuilder:validation:XValidation:rule="!has(self.puts) || !has(self.puts.keep) || self.puts.keep != 'Replica' || self.dataNodes >= 2",message="puts.keep: Replica needs two data nodes: raise dataNodes"
// +kubebuilder:validation:XValidation:rule="!has(self.derive) || (has(self.puts) && self.puts.enabled)",message="derive puts a dataset: set puts.enabled"
// +kubebuilder:validation:XValidation:rule="!has(self.puts) || !self.puts.enabled || !has(self.replicas) || self.replicas == 1",message="puts.enabled needs replicas: 1, as a dataset is in the copy that took it"
// +kubebuilder:validation:XValidation:rule="!has(self.source) || !has(self.source.files) || (!has(self.snapshot) && !has(self.trustManifests))",message="plain files have no snapshots and no manifests: leave snapshot and trustManifests out"
// +kubebuilder:validation:XValidation:rule="!has(self.source) || !has(self.source.delta) || ((!has(self.snapshot) || !has(self.snapshot.ref)) && !has(self.trustManifests))",message="Delta tables have no branches and no manifests: leave snapshot.ref and trustManifests out"
// +kubebuilder:validation:XValidation:rule="has(self.metadataLocation) == has(oldSelf.metadataLocation) && (!has(self.metadataLocation) || self.metadataLocation == oldSelf.metadataLocation)",message="metadataLocation can't be changed: make a new DataCache"
// +kubebuilder:validation:XValidation:rule="has(self.catalog) == has(oldSelf.catalog) && (!has(self.catalog) || (self.catalog.uri == oldSelf.catalog.uri && has(self.catalog.warehouse) == has(oldSelf.catalog.warehouse) && (!has(self.catalog.warehouse) || self.catalog.warehouse == oldSelf.catalog.warehouse)))",message="catalog's uri and warehouse can't be changed: make a new DataCache"
// +kubebuilder:validation:XValidation:rule="has(self.table) == has(oldSelf.table) && (!has(self.table) || self.table == oldSelf.table)",message="table can't be changed: make a new DataCache"
// +kubebuilder:validation:XValidation:rule="has(self.source) == has(oldSelf.source) && (!has(self.source) || self.source == oldSelf.source)",message="source can't be changed: make a new DataCache"
// +kubebuilder:validation:XValidation:rule="has(self.snapshot) == has(oldSelf.snapshot) && (!has(self.snapshot) || self.snapshot == oldSelf.snapshot)",message="snapshot can't be changed: make a new DataCache"
// +kubebuilder:validation:XValidation:rule="has(self.columns) == has(oldSelf.columns) && (!has(self.columns) || self.columns == oldSelf.columns)",message="columns can't be changed: make a new DataCache"
// +kubebuilder:validation:XValidation:rule="has(self.filter) == has(oldSelf.filter) && (!has(self.filter) || self.filter == oldSelf.filter)",message="filter can't be changed: make a new DataCache"
// +kubebuilder:validation:XValidation:rule="has(self.trustManifests) == has(oldSelf.trustManifests) && (!has(self.trustManifests) || self.trustManifests == oldSelf.trustManifests)",message="trustManifests can't be changed: make a new DataCache"
// +kubebuilder:validation:XValidation:rule="self.dataNodes == oldSelf.dataNodes",message="dataNodes can't be changed: make a new DataCache"
type ArrowCache struct {
	// metadataLocation is the address of the table's metadata file, such as s3://bucket/reviews/metadata/00003.metadata.json.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^[A-Za-z][A-Za-z0-9+.-]*://.+$`
	MetadataLocation *string `json:"metadataLocation,omitempty" rows:"yes"`

	// catalog is the Iceberg REST catalog that knows the table's current metadata, and has the tables to which datasets that clients put are committed.
	// +optional
	Catalog *Catalog `json:"catalog,omitempty" rows:"yes"`

	// source names what is cached if it is no Iceberg table.
	// +optional
	Source *Source `json:"source,omitempty" rows:"yes"`

	// table is <schema>.<table>; a schema may have several levels, joined by dots. Unset: source names what is cached.
	// +optional
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=1024
	// +kubebuilder:validation:XValidation:rule="self.matches('^[^./ ]+([.][^./ ]+)+$')",message="table must be <schema>.<table>"
	Table string `json:"table,omitempty" rows:"yes"`

	// snapshot selects the state of the table to cache. Unset: the one that is current when the cache is planned. The snapshot that
	// is planned first stays the cache's for life; status.snapshot records it.
	// +optional
	Snapshot *Snapshot `json:"snapshot,omitempty" rows:"yes"`

	// columns lists the top-level columns to keep in memory, in this order. Unset: all.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=1024
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=256
	Columns []string `json:"columns,omitempty" rows:"yes"`

	// filter keeps the rows for which it is true. It is written in a subset of SQL's WHERE, such as label >= 1 AND lang = 'en'.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=16384
	Filter *string `json:"filter,omitempty" rows:"yes"`

	// trustManifests loads what the table's manifests list, even if the snapshot's summary or the manifest list counts other files or
	// rows. Unset: such a table is refused, since a file that was cut off looks the same.
	// +optional
	TrustManifests bool `json:"trustManifests,omitempty" rows:"yes"`

	// puts says whether clients may put datasets of their own, which then are in the memory of the data nodes, and which TrainJobs read as
	// datacache://<namespace>/<name>/<dataset>.
	// +optional
	Puts *Puts `json:"puts,omitempty" rows:"no"`

	// derive is a step that makes a dataset of the cache's rows, such as their tokens, before the TrainJobs that read it start. It needs puts.
	// +optional
	Derive *Derive `json:"derive,omitempty" rows:"no"`

	// dataNodes is the number of pods that share the rows of one copy; the head is one more pod.
	// +optional
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=1000
	DataNodes int32 `json:"dataNodes" rows:"no"`

	// replicas is the number of complete copies of the table, each with its own head.
	// +optional
	// +kubebuilder:default=1
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Replicas int32 `json:"replicas" rows:"no"`

	// head configures the pod that tells clients where rows are. It holds no rows: the default of 1 CPU and 1Gi is enough for most
	// tables.
	// +optional
	Head PodSettings `json:"head,omitempty" rows:"no"`

	// dataNode configures the pods that hold rows. Its memory limit bounds how many bytes a pod loads.
	// +optional
	DataNode PodSettings `json:"dataNode,omitempty" rows:"no"`

	// spill stores the rows on a disk of each data node too, so that they may be larger than its memory, and a container that is restarted
	// need not load them again. Unset: rows are in memory only.
	// +optional
	Spill *Spill `json:"spill,omitempty" rows:"no"`

	// firstEpoch is the command of the epoch whose rows are loaded first, as JSON, if planning can count rows: {"seed":7,"global_batch":256}. Unset: rows
	// are loaded as clients need them, or in file order.
	// +optional
	// +kubebuilder:validation:MaxLength=4096
	// +kubebuilder:validation:Pattern=`^\{[^\n]*\}$`
	FirstEpoch string `json:"firstEpoch,omitempty" rows:"no"`

	// serviceAccount configures the account that the cache's pods run as; each cache has its own.
	// +optional
	ServiceAccount ServiceAccount `json:"serviceAccount,omitempty" rows:"no"`

	// env sets environment variables of head and data nodes: those of the object store's client, whose names begin with AWS_, AZURE_, GCS_, GOOGLE_ or
	// S3_, such as AWS_REGION or AWS_ENDPOINT_URL_S3; and HF_ENDPOINT.
	// +optional
	// +listType=map
	// +listMapKey=name
	// +kubebuilder:validation:MaxItems=64
	Env []StoreVariable `json:"env,omitempty" rows:"no"`

	// objectCache is the object cache that the table is read through. Unset: it is read directly from its bucket.
	// +optional
	ObjectCache *ObjectCache `json:"objectCache,omitempty" rows:"no"`

	// readiness configures the readiness probes of the pods. Unset: every 5 s, 3 failures.
	// +optional
	Readiness *Readiness `json:"readiness,omitempty" rows:"no"`
}

// Data names what is cached in messages.
func (a *ArrowCache) Data() string {
	switch {
	case a.Source == nil && a.Table == "":
		return "datasets that clients put"
	case a.Source == nil:
		return "table " + a.Table
	case a.Source.Delta != nil:
		return "table " + a.Source.Delta.URI
	}
	return "files " + strings.Join(a.Source.Files.URIs, ", ")
}

// Puts says whether clients may put datasets.
type Puts struct {
	// enabled lets them.
	Enabled bool `json:"enabled"`

	// limit is how much memory of each data node datasets may take, such as 16Gi, with the streams that put them. Unset: all that rows may take.
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('16Mi')) >= 0",message="limit must be at least 16Mi: it counts bytes, such as 16Gi"
	Limit *resource.Quantity `json:"limit,omitempty"`

	// limitPerWriter is how much of that memory of each data node what one writer has put may take, such as 4Gi. A writer is a ServiceAccount, as in
	// writers, or a user; with access.readers: Anyone, all clients without a token are one. Unset: all of it.
	// +optional
	// +kubebuilder:validation:XValidation:rule="quantity(string(self)).compareTo(quantity('16Mi')) >= 0",message="limitPerWriter must be at least 16Mi: it counts bytes, such as 4Gi"
	LimitPerWriter *resource.Quantity `json:"limitPerWriter,omitempty"`

	// keep is where rows are kept unless the client that puts them says so: Memory: in memory only; Disk: in files of spill, too; Replica: on two
	// data nodes. Unset: Disk if spill is set, else Memory.
	// +optional
	Keep PutKeep `json:"keep,omitempty"`

	// writers are the ServiceAccounts that may put, replace and drop datasets, as <namespace>/<name>, or <namespace>/* for all of a namespace.
	// They must be among the readers too. Unset: all of the DataCache's own namespace or, with access.readers: Anyone, whoever may read.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=317
	// +kubebuilder:validation:items:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?/([a-z0-9]([-a-z0-9.]*[a-z0-9])?|\*)$`
	Writers []string `json:"writers,omitempty"`
}

// PutKeep is how a dataset is kept.
// +kubebuilder:validation:Enum=Memory;Disk;Replica
type PutKeep string

// The values of PutKeep, which a head knows in lower case.
const (
	KeepMemory  PutKeep = "Memory"
	KeepDisk    PutKeep = "Disk"
	KeepReplica PutKeep = "Replica"
)

// OfPods returns what pods are started with. Who may put is told to running ones.
func (p *Puts) OfPods() *Puts {
	if p == nil {
		return nil
	}
	return &Puts{Enabled: p.Enabled, Limit: p.Limit, LimitPerWriter: p.LimitPerWriter, Keep: p.Keep}
}

// MayPut reports whether clients may put datasets.
func (a *ArrowCache) MayPut() bool { return a.Puts != nil && a.Puts.Enabled }

// Source names what is cached if it is no Iceberg table.
//
// +kubebuilder:validation:XValidation:rule="has(self.files) != has(self.delta)",message="exactly one of files and delta must be set"
type Source struct {
	// files are Parquet files that no table format describes.
	// +optional
	Files *FilesSource `json:"files,omitempty" rows:"yes"`

	// delta is a Delta table.
	// +optional
	Delta *DeltaSource `json:"delta,omitempty" rows:"yes"`
}

// DeltaSource names a Delta table. spec.arrow.snapshot selects its version: id is the version's number, asOf a time.
type DeltaSource struct {
	// uri is the table's folder, which contains _delta_log, such as s3://bucket/events.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^[A-Za-z][A-Za-z0-9+.-]*://.+$`
	URI string `json:"uri" rows:"yes"`
}

// FilesSource names Parquet files that are one table: their rows follow each other in the order of uris, then of the bytes of the paths.
// Which paths, sizes and versions the files have is recorded when the cache is planned first, as status.snapshot; a cache whose files
// changed and whose rows were lost fails.
type FilesSource struct {
	// uris are folders, globs or files, such as s3://bucket/train/ or gs://bucket/*/part-*.parquet. In a folder, names that don't end in
	// .parquet are left out, and what begins with _ or a dot. hf://owner/name[@revision][?config=name&split=name] is a data set on a
	// Hugging Face hub. A single address with ?list=1 at its end is a text with the URI of one file on each line.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=2048
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z][A-Za-z0-9+.-]*://.+$`
	URIs []string `json:"uris" rows:"yes"`

	// partitions says whether folder names such as day=2026-01-31 are columns (Auto) or not (Ignore). Unset: Auto.
	// +optional
	// +kubebuilder:validation:Enum=Auto;Ignore
	Partitions PartitionColumns `json:"partitions,omitempty" rows:"yes"`

	// partitionTypes are types of columns of folder names, by name, such as day: Date. Unset, or for other columns: Integer if all values
	// are written as integers are, Date if all are dates, otherwise String.
	// +optional
	// +kubebuilder:validation:MaxProperties=64
	PartitionTypes map[string]PartitionType `json:"partitionTypes,omitempty" rows:"yes"`
}

// PartitionType is the type of a column of folder names.
// +kubebuilder:validation:Enum=String;Integer;Date
type PartitionType string

// PartitionColumns says whether folder names are columns.
type PartitionColumns string

// The values of PartitionColumns.
const (
	PartitionsAuto   PartitionColumns = "Auto"
	PartitionsIgnore PartitionColumns = "Ignore" // not Off, which YAML reads as false
)

// Catalog is an Iceberg REST catalog.
type Catalog struct {
	// uri of the catalog, such as https://catalog.example.com.
	// +kubebuilder:validation:MaxLength=2048
	// +kubebuilder:validation:Pattern=`^https?://.+$`
	URI string `json:"uri" rows:"yes"`

	// warehouse is the catalog's warehouse that holds the table. Unset: the catalog's default.
	// +optional
	// +kubebuilder:validation:MaxLength=1024
	Warehouse *string `json:"warehouse,omitempty" rows:"yes"`

	// credentials for the catalog: a Secret with the key token or credential (client-id:secret).
	// +optional
	Credentials *Credentials `json:"credentials,omitempty" rows:"no"`
}

// Snapshot names a state of the table in one of three ways.
//
// +kubebuilder:validation:XValidation:rule="[has(self.id), has(self.ref), has(self.asOf)].exists_one(set, set)",message="exactly one of id, ref and asOf must be set"
type Snapshot struct {
	// id of the snapshot, or the version of a Delta table: a 64-bit integer as decimal digits, since JSON numbers are exact only up to 53 bits.
	// +optional
	// +kubebuilder:validation:MaxLength=20
	// +kubebuilder:validation:Pattern=`^(0|-?[1-9][0-9]{0,18})$`
	ID *string `json:"id,omitempty" rows:"yes"`

	// ref is a branch or tag of the table, such as main.
	// +optional
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=256
	Ref *string `json:"ref,omitempty" rows:"yes"`

	// asOf is an RFC 3339 time, such as 2026-01-31T00:00:00.5Z: it selects the snapshot that was current then. It is a string, so
	// that fractions of seconds are kept.
	// +optional
	// +kubebuilder:validation:Format=date-time
	// +kubebuilder:validation:MaxLength=40
	AsOf *string `json:"asOf,omitempty" rows:"yes"`
}

// PodSettings describes the pods of one role.
type PodSettings struct {
	// resources of the pod's container. Where only a limit or only a request is given, the other is set to the same value; but the limit
	// of cpu is at least 1 for a head and 2 for a data node, unless it is given.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.requests) || !has(self.limits) || ['cpu', 'memory', 'ephemeral-storage'].all(name, !(name in self.requests) || !(name in self.limits) || quantity(string(self.requests[name])).compareTo(quantity(string(self.limits[name]))) <= 0)",message="requests must not be above limits"
	Resources corev1.ResourceRequirements `json:"resources,omitempty"`

	// template is merged over the pods' own template as kubectl patch does: lists with a merge key (containers, env, volumes,
	// volumeMounts, ...) by that key, while other lists are replaced. The container to patch is named head or node.
	// +optional
	// +kubebuilder:validation:XValidation:rule="!has(self.spec) || (!has(self.spec.serviceAccountName) && !has(self.spec.serviceAccount))",message="spec.serviceAccountName can't be set: the cache's pods have an account of their own, which spec.arrow.serviceAccount annotates"
	Template *PodTemplate `json:"template,omitempty"`
}

// PodTemplate is a partial pod template, merged over the template that the controller makes. It can't change the labels of
// datacache.kubeflow.org, the environment that the controller sets or the arguments of the server.
type PodTemplate struct {
	// +optional
	Metadata PodMetadata `json:"metadata,omitempty"`

	// spec may omit containers; those that it lists are merged by name.
	// +optional
	Spec *corev1.PodSpec `json:"spec,omitempty"`
}

// PodMetadata is added to the metadata of pods.
type PodMetadata struct {
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// ServiceAccount is added to the cache's own account.
type ServiceAccount struct {
	// annotations of the account, such as eks.amazonaws.com/role-arn.
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
}

// StoreVariable is a plain environment variable of the object store's client.
type StoreVariable struct {
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^((AWS|AZURE|GCS|GOOGLE|S3)_[A-Z0-9_]+|HF_ENDPOINT)$`
	Name string `json:"name"`
	// +kubebuilder:validation:MaxLength=4096
	Value string `json:"value"`
}

// ObjectCache names a bucket of the cluster's object cache. The cache's own ServiceAccount reads and writes it, so the bucket must be
// open to the DataCache's namespace. Everyone with access to the bucket can read what was read through it.
type ObjectCache struct {
	// bucket that keeps the table's blocks.
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:Pattern=`^[A-Za-z0-9][A-Za-z0-9._-]*$`
	Bucket string `json:"bucket"`
}

// Readiness holds the timings of the readiness probes, in seconds, and their failure threshold.
type Readiness struct {
	// +optional
	// +kubebuilder:validation:Minimum=0
	InitialDelaySeconds int32 `json:"initialDelaySeconds,omitempty"`
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	PeriodSeconds int32 `json:"periodSeconds,omitempty"`
	// +optional
	// +kubebuilder:default=5
	// +kubebuilder:validation:Minimum=1
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`
	// +optional
	// +kubebuilder:default=3
	// +kubebuilder:validation:Minimum=1
	FailureThreshold int32 `json:"failureThreshold,omitempty"`
}
