{{- /* What the container is told by its environment, what it mounts, and from where. */ -}}
{{- define "moiety.environment" -}}
{{- $values := .top.Values -}}
{{- $ray := eq $values.server.engine "ray" -}}
{{- if or $values.database.secret $ray }}
env:
  {{- if ne .role "server" }}
  - {name: MOIETY_SERVER_ROLE, value: {{ .role }}}
  {{- end }}
  {{- with $values.database.secret }}
  - name: MOIETY_SERVER_DATABASE_URL
    valueFrom: {secretKeyRef: {name: {{ . }}, key: {{ $values.database.key }}}}
  {{- end }}
  {{- if $ray }}
  - {name: RAY_USAGE_STATS_ENABLED, value: "0"}
  {{- end }}
  {{- if and $ray $values.ray.address }}
  - {name: RAY_USE_TLS, value: "1"}
  - {name: RAY_TLS_SERVER_CERT, value: /etc/moiety/ray-tls/tls.crt}
  - {name: RAY_TLS_SERVER_KEY, value: /etc/moiety/ray-tls/tls.key}
  - {name: RAY_TLS_CA_CERT, value: /etc/moiety/ray-tls/ca.crt}
  - {name: RAY_AUTH_MODE, value: token}
  - {name: RAY_AUTH_TOKEN_PATH, value: /etc/moiety/ray-token/token}
  {{- end }}
{{- end }}
{{- with and $ray $values.ray.environmentSecret }}
envFrom:
  - secretRef: {name: {{ . }}}
{{- end }}
{{- end }}

{{- define "moiety.mounts" -}}
- {name: settings, mountPath: /etc/moiety, readOnly: true}
- {name: data, mountPath: /var/lib/moiety}
- {name: tmp, mountPath: /tmp}
{{- with and (eq .Values.server.engine "ray") .Values.ray.sharedClaim }}
- {name: shared, mountPath: /shared}
{{- end }}
{{- end }}

{{- define "moiety.volumes" -}}
{{- $ray := eq .Values.server.engine "ray" -}}
- name: settings
  projected:
    # Root's, lent to the pod's group: a secret that more can read is refused at the start.
    defaultMode: 0440
    sources:
      - configMap: {name: {{ include "moiety.name" . }}}
      {{- if .Values.roster }}
      - configMap:
          name: {{ include "moiety.name" . }}-roster
          items: [{key: roster.toml, path: roster/roster.toml}]
      {{- end }}
      - secret:
          name: {{ required "secrets.keys: the Secret with keys.toml" .Values.secrets.keys }}
          items: [{key: keys.toml, path: keys/keys.toml}]
      - secret:
          name: {{ required "secrets.tls: the Secret with tls.crt and tls.key" .Values.secrets.tls }}
          items:
            - {key: tls.crt, path: tls/tls.crt}
            - {key: tls.key, path: tls/tls.key}
      {{- if $ray }}
      - secret:
          name: {{ required "ray.wrappingKeySecret: the Secret with wrapping.key" .Values.ray.wrappingKeySecret }}
          items: [{key: wrapping.key, path: wrapping/wrapping.key}]
      {{- if .Values.ray.address }}
      - secret:
          name: {{ required "ray.tlsSecret: a cluster on other machines is used over TLS alone" .Values.ray.tlsSecret }}
          items:
            - {key: tls.crt, path: ray-tls/tls.crt}
            - {key: tls.key, path: ray-tls/tls.key}
            - {key: ca.crt, path: ray-tls/ca.crt}
      - secret:
          name: {{ required "ray.tokenSecret: a cluster on other machines is used with a token alone" .Values.ray.tokenSecret }}
          items: [{key: token, path: ray-token/token}]
      {{- end }}
      {{- end }}
- name: tmp
  emptyDir: {medium: Memory, sizeLimit: {{ ternary "512Mi" "64Mi" $ray }}}
{{- with and $ray .Values.ray.sharedClaim }}
- name: shared
  persistentVolumeClaim: {claimName: {{ . }}}
{{- end }}
{{- with .Values.persistence.existingClaim }}
- name: data
  persistentVolumeClaim: {claimName: {{ . }}}
{{- end }}
{{- end }}
