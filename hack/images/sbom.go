// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

// bill says what an SBOM is about.
type bill struct {
	name, version, source string // of what is released: cacheserver, v0.1.0, git+https://...@COMMIT
	created               time.Time
}

func sbomCommand(_ context.Context, flags *flag.FlagSet, args []string) error {
	var b bill
	var created seconds
	var wheel, lock, out string
	flags.StringVar(&b.name, "name", "", "what the programs are released as: cacheserver")
	flags.StringVar(&b.version, "version", "", "its version: v0.1.0")
	flags.StringVar(&b.source, "source", noAssertion, "where the source is: git+https://HOST/REPOSITORY@COMMIT")
	flags.StringVar(&wheel, "wheel", "", "a wheel in place of programs")
	flags.StringVar(&lock, "lock", "", "the lock file with the versions that the wheel is tested with")
	flags.StringVar(&out, "o", "", "the file to write")
	flags.Var(&created, "time", "when the SBOM is said to be made, in seconds since 1970")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if b.name == "" || b.version == "" || out == "" {
		return fmt.Errorf("-name %q, -version %q, -o %q: none may be empty", b.name, b.version, out)
	}
	b.created = created.Time
	made, err := b.document(wheel, lock, flags.Args())
	if err != nil {
		return err
	}
	text, err := json.MarshalIndent(made, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(out, append(text, '\n'), 0o644)
}

func (b bill) document(wheel, lock string, programs []string) (*document, error) {
	made := &document{
		Version: "SPDX-2.3", DataLicense: "CC0-1.0", ID: "SPDXRef-DOCUMENT", Name: b.name + "-" + b.version,
		Creation: creation{Created: b.created.Format(time.RFC3339), Creators: []string{"Organization: The Kubeflow Authors", "Tool: datacache-hack-images"}},
	}
	if (wheel == "") == (len(programs) == 0) {
		return nil, fmt.Errorf("-wheel %q, programs %q: want either", wheel, programs)
	}
	if wheel != "" {
		if err := made.addWheel(b, wheel, lock); err != nil {
			return nil, err
		}
	}
	for _, program := range programs {
		if err := made.addProgram(b, program); err != nil {
			return nil, fmt.Errorf("%s: %w", program, err)
		}
	}
	unnamed, err := json.Marshal(made)
	if err != nil {
		return nil, err
	}
	made.Namespace = fmt.Sprintf("https://github.com/kubeflow/datacache/spdx/%s-%s-%x", b.name, b.version, sha256.Sum256(unnamed))
	return made, nil
}

// addProgram adds a Go program and the modules that the compiler recorded in it.
func (d *document) addProgram(b bill, file string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	info, err := buildinfo.Read(bytes.NewReader(content))
	if err != nil {
		return fmt.Errorf("not a Go program: %w", err)
	}
	settings := map[string]string{}
	for _, setting := range info.Settings {
		settings[setting.Key] = setting.Value
	}
	platform := settings["GOOS"] + "/" + settings["GOARCH"]
	main := released(b, b.name+"-"+settings["GOOS"]+"-"+settings["GOARCH"], content)
	main.Purpose = "APPLICATION"
	main.Description = info.Path + " for " + platform
	main.References = []externalRef{purl("golang", info.Main.Path, b.version)}
	d.add(main)
	d.relate(d.ID, "DESCRIBES", main.ID)
	modules := append([]*debug.Module{{Path: "stdlib", Version: info.GoVersion}}, info.Deps...)
	for _, module := range modules {
		if module.Replace != nil {
			module = module.Replace
		}
		library := dependency("golang", module.Path, module.Version)
		d.add(library)
		d.relate(main.ID, "DEPENDS_ON", library.ID)
	}
	return nil
}

// addWheel adds a wheel and the versions of its requirements that it is tested with. It contains none of them: pip chooses.
func (d *document) addWheel(b bill, file, lock string) error {
	content, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	pins, err := os.ReadFile(lock)
	if err != nil {
		return err
	}
	main := released(b, filepath.Base(file), content)
	main.Purpose = "LIBRARY"
	main.References = []externalRef{purl("pypi", b.name, strings.TrimPrefix(b.version, "v"))}
	d.add(main)
	d.relate(d.ID, "DESCRIBES", main.ID)
	found := map[string]string{"numpy": "", "pyarrow": ""} // [project] dependencies of python/pyproject.toml
	for line := range strings.Lines(string(pins)) {
		name, version, ok := strings.Cut(strings.TrimSpace(line), "==")
		if _, wanted := found[name]; ok && wanted {
			found[name] = version
		}
	}
	for _, name := range slices.Sorted(maps.Keys(found)) {
		if found[name] == "" {
			return fmt.Errorf("%s names no version of %s, which the wheel requires", lock, name)
		}
		library := dependency("pypi", name, found[name])
		library.Description = "the version that the wheel is tested with; the wheel does not contain it"
		d.add(library)
		d.relate(main.ID, "DEPENDS_ON", library.ID)
	}
	return nil
}

// released returns the package of a file of ours.
func released(b bill, name string, content []byte) spdxPackage {
	digest := sha256.Sum256(content)
	return spdxPackage{
		Name: name, ID: spdxID(name, b.version), Version: b.version, Location: b.source, Licence: "Apache-2.0",
		Copyright: "Copyright The Kubeflow Authors", Checksums: []checksum{{"SHA256", hex.EncodeToString(digest[:])}},
	}
}

func dependency(kind, name, version string) spdxPackage {
	return spdxPackage{
		Name: name, ID: spdxID(name, version), Version: version, Location: noAssertion, Licence: noAssertion, Copyright: noAssertion,
		Purpose: "LIBRARY", References: []externalRef{purl(kind, name, version)},
	}
}

// purl is a package's URL (https://github.com/package-url/purl-spec).
func purl(kind, name, version string) externalRef {
	return externalRef{"PACKAGE-MANAGER", "purl", fmt.Sprintf("pkg:%s/%s@%s", kind, name, strings.ReplaceAll(version, "+", "%2B"))}
}

// spdxID is an identifier of letters, digits, dots and hyphens, all that SPDX allows.
func spdxID(name, version string) string {
	return "SPDXRef-" + strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' {
			return r
		}
		return '-'
	}, name+"-"+version)
}

// add adds a package once.
func (d *document) add(p spdxPackage) {
	if !slices.ContainsFunc(d.Packages, func(other spdxPackage) bool { return other.ID == p.ID }) {
		d.Packages = append(d.Packages, p)
	}
}

func (d *document) relate(from, kind, to string) {
	d.Relationships = append(d.Relationships, relationship{from, kind, to})
}
