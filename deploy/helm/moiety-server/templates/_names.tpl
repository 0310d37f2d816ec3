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
