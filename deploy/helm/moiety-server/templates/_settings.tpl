{{- /* settings.toml of docs/operating.md. Places and ports are the pod's and not to be chosen. */ -}}
{{- define "moiety.settings" -}}
{{- $server := .Values.server -}}
side = {{ required "server.side: a or b" $server.side | toJson }}
host = "0.0.0.0"
port = 8443
operations_host = "0.0.0.0"
operations_port = 9443
public_url = {{ required "server.publicUrl: the address that sites call" $server.publicUrl | toJson }}
{{- with $server.peerUrl }}
peer_url = {{ toJson . }}
{{- end }}
keys = "keys/keys.toml"
tls_certificate = "tls/tls.crt"
tls_key = "tls/tls.key"
data_dir = "/var/lib/moiety/data"
roster = {{ ternary "roster/roster.toml" "/var/lib/moiety/data/roster.toml" (not (empty .Values.roster)) | toJson }}
{{- if .Values.card }}
card = "card.toml"
{{- end }}
{{- if .Values.peerCa }}
peer_ca = "peer-ca.pem"
{{- end }}
{{- with $server.forwardedBy }}
forwarded_by = {{ toJson . }}
{{- end }}
{{- if not (kindIs "invalid" $server.deleteEndedAfterDays) }}
delete_ended_after_days = {{ toJson $server.deleteEndedAfterDays }}
{{- end }}
engine = {{ toJson $server.engine }}
{{- if eq $server.engine "ray" }}

[ray]
{{- with .Values.ray.address }}
address = {{ toJson . }}
{{- end }}
{{- if or .Values.ray.address .Values.ray.storage }}
storage = {{ required "ray.storage: where every worker reads shares; the pod's own volume is reached by none" .Values.ray.storage | toJson }}
{{- end }}
range_parameters = {{ toJson .Values.ray.rangeParameters }}
wrapping_key = "/etc/moiety/wrapping/wrapping.key"
{{- end }}
{{- with $server.limits }}

[limits]
{{- range $name, $value := . }}
{{ $name }} = {{ toJson $value }}
{{- end }}
{{- end }}
{{ end }}
