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
datacache.file is a file of the manifests, in the release's namespace: (list . "rbac/leader.yaml"). The files folder links to manifests/, so
that an object is written once; test/install checks that both ways of installing render the same objects.
*/}}
{{- define "datacache.file" -}}
{{- $root := index . 0 -}}
{{- $path := printf "files/%s" (index . 1) -}}
{{- $text := $root.Files.Get $path | required (printf "the chart lacks %s" $path) -}}
{{ $text | replace "namespace: system" (printf "namespace: %s" $root.Release.Namespace) | replace "datacache-system" $root.Release.Namespace }}
{{- end -}}

{{/*
datacache.place writes into a pod template's spec how its images are pulled and where it runs: (list . $pod $values). What $values names is
added to what the manifest has. It prints nothing.
*/}}
{{- define "datacache.place" -}}
{{- $root := index . 0 -}}
{{- $pod := index . 1 -}}
{{- $values := index . 2 -}}
{{- with $root.Values.imagePullSecrets }}{{ $_ := set $pod "imagePullSecrets" . }}{{ end -}}
{{- with $values.nodeSelector }}{{ $_ := set $pod "nodeSelector" (mergeOverwrite (dict) ($pod.nodeSelector | default dict) .) }}{{ end -}}
{{- with $values.tolerations }}{{ $_ := set $pod "tolerations" (concat ($pod.tolerations | default list) .) }}{{ end -}}
{{- with $values.affinity }}{{ $_ := set $pod "affinity" . }}{{ end -}}
{{- end -}}
