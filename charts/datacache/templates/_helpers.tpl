{{/*
datacache.image is the reference of one of our images: (list . "manager").
*/}}
{{- define "datacache.image" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $image := $root.Values.image -}}
{{- with index ($image.digests | default dict) $name -}}
{{ $image.registry }}/{{ $name }}@{{ . }}
{{- else -}}
{{ $image.registry }}/{{ $name }}:{{ $image.tag | default (printf "v%s" $root.Chart.AppVersion) }}
{{- end -}}
{{- end -}}

{{/*
datacache.file is a file of the kustomize base or of a component, in the release's namespace: (list . "rbac/leader.yaml"). The files folder
links to manifests/, so that an object is written once; test/chart holds that both ways of installing render the same objects.
*/}}
{{- define "datacache.file" -}}
{{- $root := index . 0 -}}
{{- $path := printf "files/%s" (index . 1) -}}
{{- $text := $root.Files.Get $path | required (printf "the chart lacks %s" $path) -}}
{{ $text | replace "namespace: system" (printf "namespace: %s" $root.Release.Namespace) | replace "datacache-system" $root.Release.Namespace }}
{{- end -}}
