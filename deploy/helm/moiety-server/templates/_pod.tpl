{{- /* The pod of one kind of process: server (all of it), upload or driver; called with (dict "top" $ "role" ROLE). */ -}}
{{- define "moiety.pod" -}}
{{- $top := .top -}}
metadata:
  labels: {{- include "moiety.labels" $top | nindent 4 }}
    {{- if ne .role "server" }}
    app.kubernetes.io/component: {{ .role }}
    {{- end }}
  annotations:
    moiety/settings: {{ include "moiety.settings" $top | sha256sum }} # other settings begin with a drained restart
    {{- with $top.Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  serviceAccountName: {{ include "moiety.name" $top }}
  automountServiceAccountToken: false
  enableServiceLinks: false
  terminationGracePeriodSeconds: {{ ternary (add $top.Values.drain.withinS 60) 60 (eq .role "server") }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 10001
    runAsGroup: 10001
    fsGroup: 10001
    fsGroupChangePolicy: OnRootMismatch
    seccompProfile: {type: RuntimeDefault}
  {{- with $top.Values.imagePullSecrets }}
  imagePullSecrets: {{- toYaml . | nindent 4 }}
  {{- end }}
  containers:
    - name: server
      image: {{ include "moiety.image" $top | quote }}
      imagePullPolicy: {{ $top.Values.image.pullPolicy }}
      securityContext: {{- include "moiety.confined" $top | nindent 8 }}
      ports:
        - {name: public, containerPort: 8443, protocol: TCP}
        - {name: operations, containerPort: 9443, protocol: TCP}
      {{- with include "moiety.environment" . | trim }}
      {{- . | nindent 6 }}
      {{- end }}
      # Readiness is whether sites can be answered. /readyz asks more, the other server among it: B is ready there
      # only once A has called it, which it could not if nobody reached B before.
      startupProbe:
        httpGet: {path: /healthz, port: public, scheme: HTTPS}
        periodSeconds: 5
        failureThreshold: 60
      readinessProbe:
        httpGet: {path: /healthz, port: public, scheme: HTTPS}
        periodSeconds: 10
        timeoutSeconds: 5
      livenessProbe:
        httpGet: {path: /healthz, port: public, scheme: HTTPS}
        periodSeconds: 15
        timeoutSeconds: 5
        failureThreshold: 4
        terminationGracePeriodSeconds: 30 # what does not answer does not drain either
      {{- if eq .role "server" }}
      lifecycle:
        preStop:
          exec:
            command: [moiety, server, drain, --stay, --within, {{ $top.Values.drain.withinS | quote }}, --config, /etc/moiety/settings.toml]
      {{- end }}
      resources: {{- toYaml $top.Values.resources | nindent 8 }}
      volumeMounts: {{- include "moiety.mounts" $top | nindent 8 }}
  volumes: {{- include "moiety.volumes" $top | nindent 4 }}
  {{- include "moiety.placed" $top | nindent 2 }}
{{- end }}

{{- define "moiety.confined" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "moiety.placed" -}}
{{- with .Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
