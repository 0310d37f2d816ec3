{{- define "moiety.name" -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end }}

{{- define "moiety.selector" -}}
app.kubernetes.io/name: moiety-server
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "moiety.labels" -}}
{{ include "moiety.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "moiety.image" -}}
{{- if .Values.image.digest -}}
{{ .Values.image.repository }}@{{ .Values.image.digest }}
{{- else -}}
{{ .Values.image.repository }}:{{ required "image.digest: name the digest of the release's image (or image.tag, for a trial)" .Values.image.tag }}
{{- end -}}
{{- end }}

{{- /* Caddy in front of several processes: none of the server's own pods. */ -}}
{{- define "moiety.front" -}}
app.kubernetes.io/name: moiety-front
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "moiety.front.image" -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ required "processes.front.image.digest: name the digest of Caddy's image (or its tag, for a trial)" .tag }}
{{- end -}}
{{- end }}

{{- define "moiety.host" -}}
{{ get (urlParse (required "server.publicUrl: the address that sites call" .Values.server.publicUrl)) "hostname" }}
{{- end }}

{{- define "moiety.front.environment" -}}
{{- $name := include "moiety.name" . -}}
{{- $several := .Values.processes -}}
{{- $uploads := list -}}
{{- range until (int $several.uploads) }}{{ $uploads = append $uploads (printf "https://%s-upload-%d.%s-upload:8443" $name . $name) }}{{ end -}}
{{- $drivers := list -}}
{{- range until (int $several.drivers) }}{{ $drivers = append $drivers (printf "https://%s-driver-%d.%s-driver:8443" $name . $name) }}{{ end -}}
- {name: MOIETY_URL, value: "https://{{ include "moiety.host" . }}:8443"}
- {name: MOIETY_NAME, value: {{ include "moiety.host" . | quote }}}
- {name: MOIETY_UPLOADS, value: {{ join " " $uploads | quote }}}
- {name: MOIETY_DRIVERS, value: {{ join " " $drivers | quote }}}
- {name: MOIETY_UPSTREAM_CA, value: /etc/tls/tls.crt}
- {name: MOIETY_CERTIFICATE, value: /etc/tls/tls.crt /etc/tls/tls.key}
- {name: MOIETY_CHOOSE, value: {{ $several.front.choose }}}
- {name: XDG_DATA_HOME, value: /tmp}
- {name: XDG_CONFIG_HOME, value: /tmp}
{{- end }}
