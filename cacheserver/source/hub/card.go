// Copyright The Kubeflow Authors.
// SPDX-License-Identifier: Apache-2.0

package hub

import (
	"bytes"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/kubeflow/datacache/cacheserver/objstore"
	"github.com/kubeflow/datacache/cacheserver/source/glob"
)

// config is a configuration of a data set.
type config struct {
	name      string
	preferred bool // what datasets loads if none is named
	splits    []split
}

func (c config) title() string { return c.name }

// split is a part of a configuration.
type split struct {
	name  string
	files []objstore.Entry // in the order of their rows
}

func (s split) title() string { return s.name }

// described is a configuration as a data set's card describes it.
type described struct {
	Name    string    `yaml:"config_name"`
	Default bool      `yaml:"default"`
	Dir     string    `yaml:"data_dir"`
	Files   yaml.Node `yaml:"data_files"`
}

// parseCard returns the configurations in the YAML header of a README.md (https://huggingface.co/docs/hub/datasets-manual-configuration).
func parseCard(text []byte) ([]described, error) {
	rest, ok := bytes.CutPrefix(bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")), []byte("---"))
	header, _, closed := bytes.Cut(rest, []byte("\n---"))
	if !ok || !closed {
		return nil, nil
	}
	var card struct {
		Configs []described `yaml:"configs"`
	}
	if err := yaml.Unmarshal(header, &card); err != nil {
		return nil, fmt.Errorf("the header of its README.md: %w", err)
	}
	return card.Configs, nil
}

// pattern is the globs of a split.
type pattern struct {
	split string
	globs globs
}

// patterns returns what data_files names: a glob, a list of globs, or a list of splits with their globs.
func (d *described) patterns() ([]pattern, error) {
	var all globs
	if d.Files.Decode(&all) == nil {
		return []pattern{{"train", all}}, nil
	}
	var list []struct {
		Split string `yaml:"split"`
		Path  globs  `yaml:"path"`
	}
	if err := d.Files.Decode(&list); err != nil {
		return nil, fmt.Errorf("data_files: %w", err)
	}
	patterns := make([]pattern, len(list))
	for i, each := range list {
		if each.Split == "" || len(each.Path) == 0 {
			return nil, fmt.Errorf("data_files: entry %d has no split or no path", i+1)
		}
		patterns[i] = pattern{each.Split, each.Path}
	}
	return patterns, nil
}

// globs is one glob or a list.
type globs []string

// UnmarshalYAML implements yaml.Unmarshaler.
func (g *globs) UnmarshalYAML(node *yaml.Node) error {
	if node.Kind == yaml.ScalarNode {
		*g = globs{node.Value}
		return nil
	}
	var list []string
	if err := node.Decode(&list); err != nil {
		return err
	}
	*g = list
	return nil
}

// describe finds the files of a configuration.
func (r *repository) describe(d described) (config, error) {
	c := config{name: d.Name, preferred: d.Default || d.Name == "default"}
	dir := strings.Trim(d.Dir, "/")
	if d.Files.IsZero() {
		c.splits = splitsByName(r.files, dir)
		return c, nil
	}
	patterns, err := d.patterns()
	if err != nil {
		return config{}, err
	}
	for _, p := range patterns {
		s := split{name: p.split}
		seen := map[string]bool{}
		for _, each := range p.globs {
			wanted := path.Join(dir, each)
			if strings.Contains(each, "://") {
				return config{}, fmt.Errorf("split %s names %s, which is not in the data set: name those files yourself", p.split, each)
			}
			for _, e := range r.files {
				if isParquet(e) && !seen[e.Path] && glob.Matches(wanted, e.Path) {
					s.files, seen[e.Path] = append(s.files, e), true
				}
			}
		}
		if len(s.files) > 0 {
			c.splits = append(c.splits, s)
		}
	}
	return c, nil
}

var (
	shard = regexp.MustCompile(`^data/(\w+(?:\.\w+)*)-\d{5}-of-\d{5}[^/]*\.parquet$`)
	// part matches the files of the hub's conversions: config/split/0000.parquet.
	part = regexp.MustCompile(`^([^/]+)/([^/]+)/\d{4}\.parquet$`)
)

// keywords of the names of files and folders, by split.
var keywords = []struct {
	split string
	words []string
}{
	{"train", []string{"train", "training"}},
	{"validation", []string{"validation", "valid", "dev", "val"}},
	{"test", []string{"test", "testing", "eval", "evaluation"}},
}

// Forms of the names of folders and of files with a keyword, in the order in which datasets reads those that have them. Before and after the
// keyword stands the beginning or the end of the name, or one of -._ 0-9.
var (
	folderForms = []string{`(?:^|/)%s/`, `(?:^|/)%s[-._ 0-9][^/]*/`, `(?:^|/)[^/]*[-._ 0-9]%s/`, `(?:^|/)[^/]*[-._ 0-9]%s[-._ 0-9][^/]*/`}
	fileForms   = []string{`(?:^|/)%s[-._ 0-9][^/]*$`, `(?:^|/)[^/]*[-._ 0-9]%s[-._ 0-9][^/]*$`}
)

// splitsByKeyword returns the splits whose keywords are in the names; name returns what is looked at.
func splitsByKeyword(files []objstore.Entry, forms []string, name func(objstore.Entry) string) []split {
	var splits []split
	for _, k := range keywords {
		s := split{name: k.split}
		seen := map[string]bool{}
		for _, word := range k.words {
			for _, form := range forms {
				matches := regexp.MustCompile(fmt.Sprintf(form, word))
				for _, e := range files {
					if !seen[e.Path] && matches.MatchString(name(e)) {
						s.files, seen[e.Path] = append(s.files, e), true
					}
				}
			}
		}
		if len(s.files) > 0 {
			splits = append(splits, s)
		}
	}
	return splits
}

// splitsByName returns the splits that the names of the Parquet files below a folder tell, by the rules of datasets: data/NAME-00000-of-00001,
// else folders, else files whose names contain a keyword such as train, else all files are of the split train.
func splitsByName(all []objstore.Entry, dir string) []split {
	var files []objstore.Entry
	for _, e := range all {
		if isParquet(e) && (dir == "" || strings.HasPrefix(e.Path, dir+"/")) {
			files = append(files, e)
		}
	}
	inside := func(e objstore.Entry) string { return strings.TrimPrefix(strings.TrimPrefix(e.Path, dir), "/") }
	if found := group(files, func(e objstore.Entry) string {
		if m := shard.FindStringSubmatch(inside(e)); m != nil {
			return m[1]
		}
		return ""
	}); len(found) > 0 {
		return found
	}
	if found := splitsByKeyword(files, folderForms, inside); len(found) > 0 {
		return found
	}
	if found := splitsByKeyword(files, fileForms, inside); len(found) > 0 {
		return found
	}
	return group(files, func(objstore.Entry) string { return "train" })
}

// group groups files by a name, in the order of the names; a file whose name is empty belongs to none.
func group(files []objstore.Entry, of func(objstore.Entry) string) []split {
	var splits []split
	for _, e := range files {
		name := of(e)
		at := slices.IndexFunc(splits, func(s split) bool { return s.name == name })
		if name == "" {
			continue
		}
		if at < 0 {
			splits, at = append(splits, split{name: name}), len(splits)
		}
		splits[at].files = append(splits[at].files, e)
	}
	slices.SortStableFunc(splits, func(a, b split) int { return strings.Compare(a.name, b.name) })
	return splits
}

// convertedConfigs returns the configurations of a hub's conversion.
func (r *repository) convertedConfigs() []config {
	var configs []config
	for _, c := range group(r.files, func(e objstore.Entry) string { return partOf(e, 1) }) {
		configs = append(configs, config{
			name: c.name, preferred: c.name == "default", splits: group(c.files, func(e objstore.Entry) string { return partOf(e, 2) }),
		})
	}
	return configs
}

// partOf is a folder of a converted file: 1, its configuration's, or 2, its split's.
func partOf(e objstore.Entry, folder int) string {
	if m := part.FindStringSubmatch(e.Path); m != nil {
		return m[folder]
	}
	return ""
}
