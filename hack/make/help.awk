# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
#
# Lists the targets of makefiles: those of the first one in its groups (##@ NAME), with what they do (## TEXT); those of the others by name, or, with
# -v all=1, likewise.

function flush() {
  if (line != "") print line
  line = ""
}

FNR == 1 {
  flush()
  others = NR > 1
  name = FILENAME
  sub(/.*\//, "", name)
  sub(/\.mk$/, "", name)
  title = others ? name : ""
}

/^##@ / { printf "\n%s\n", substr($0, 5) }

/^[a-z0-9-]+:.* ## / {
  target = $0
  sub(/:.*/, "", target)
  text = $0
  sub(/.* ## /, "", text)
  if (!others || all) {
    if (title != "") printf "\n%s\n", title
    title = ""
    printf "  %-20s %s\n", target, text
  } else {
    if (line == "") line = sprintf("\n%-9s", name)
    if (length(line) + length(target) > 99) {
      flush()
      line = sprintf("%-9s", "")
    }
    line = line " " target
  }
}

END {
  flush()
  if (!all) print "\n'make help ALL=1' describes all of them, 'make bench' lists the benchmarks."
}
