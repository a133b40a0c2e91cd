{{- define "autellix.name" -}}
{{- default .Release.Name .Values.fullnameOverride | trunc 50 | trimSuffix "-" -}}
{{- end -}}

{{- define "autellix.labels" -}}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{ include "autellix.selector" . }}
{{- end -}}

{{- define "autellix.selector" -}}
app.kubernetes.io/name: autellix
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "autellix.gatewayImage" -}}
{{- with .Values.gateway.image -}}
{{ .repository }}:{{ default $.Chart.AppVersion .tag }}
{{- end -}}
{{- end -}}

{{- define "autellix.secret" -}}
{{- default (printf "%s-secrets" (include "autellix.name" .)) .Values.existingSecret -}}
{{- end -}}

{{/* What engines share with gateways for their reports; without the key in a Secret of others there are none. */}}
{{- define "autellix.reportSecret" -}}
- name: AUTELLIX_ENGINE_REPORT_SECRET
  valueFrom:
    secretKeyRef:
      name: {{ include "autellix.secret" . }}
      key: report-secret
      {{- if .Values.existingSecret }}
      optional: true
      {{- end }}
{{- end -}}

{{/* Constraints with the selector of a component's pods. */}}
{{- define "autellix.spread" -}}
{{- $root := .root -}}
{{- $component := .component -}}
{{- range .constraints }}
- {{ toYaml . | nindent 2 | trim }}
  labelSelector:
    matchLabels:
      {{- include "autellix.selector" $root | nindent 6 }}
      app.kubernetes.io/component: {{ $component }}
{{- end }}
{{- end -}}

{{- define "autellix.hasOwnRedis" -}}
{{- if and .Values.store.redis.enabled (not .Values.store.existingSecret) -}}yes{{- end -}}
{{- end -}}

{{/* Each pod that the StatefulSet may have by its own name, then the others. */}}
{{- define "autellix.engineUrls" -}}
{{- $urls := list -}}
{{- if .Values.engine.enabled -}}
{{- $name := printf "%s-engine" (include "autellix.name" .) -}}
{{- $engines := .Values.engine.replicas -}}
{{- if .Values.engine.autoscaling.enabled -}}
{{- $engines = .Values.engine.autoscaling.maxReplicas -}}
{{- end -}}
{{- range $number := until (int $engines) -}}
{{- $urls = append $urls (printf "http://%s-%d.%s.%s.svc:8000" $name $number $name $.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- concat $urls .Values.externalEngines | join " " -}}
{{- end -}}

{{/* A setting as its variable has it: lists with commas, whole numbers without an exponent. */}}
{{- define "autellix.value" -}}
{{- if kindIs "slice" . -}}
{{- $parts := list -}}
{{- range . -}}{{- $parts = append $parts (include "autellix.value" .) -}}{{- end -}}
{{- join "," $parts -}}
{{- else if kindIs "float64" . -}}
{{- if eq . (floor .) -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- else -}}
{{ . }}
{{- end -}}
{{- end -}}

{{/* Variables of one section. */}}
{{- define "autellix.section" -}}
{{- $section := .section -}}
{{- range $field, $value := .fields }}
- name: {{ printf "AUTELLIX_%s_%s" $section $field | upper }}
  value: {{ include "autellix.value" $value | quote }}
{{- end -}}
{{- end -}}

{{/* The Secret with the tenants file; empty where there are no keys. */}}
{{- define "autellix.tenants" -}}
{{- if not .Values.tenants.open -}}
{{- default (printf "%s-tenants" (include "autellix.name" .)) .Values.tenants.existingSecret -}}
{{- end -}}
{{- end -}}

{{- define "autellix.check" -}}
{{- if not (include "autellix.engineUrls" .) -}}
{{- fail "there is no engine: expected engine.enabled or externalEngines" -}}
{{- end -}}
{{- $has_store := or .Values.store.existingSecret .Values.store.redis.enabled -}}
{{- $gateways := int .Values.gateway.replicas -}}
{{- if .Values.gateway.autoscaling.enabled -}}
{{- $gateways = int .Values.gateway.autoscaling.maxReplicas -}}
{{- end -}}
{{- if and (gt $gateways 1) (not $has_store) -}}
{{- fail "several gateways need one process table: expected store.existingSecret or store.redis.enabled" -}}
{{- end -}}
{{- if and .Values.tenants.open .Values.tenants.existingSecret -}}
{{- fail "tenants.open needs no keys, and tenants.existingSecret has some: expected one of them" -}}
{{- end -}}
{{- $policy := .Values.gateway.networkPolicy -}}
{{- if and (or .Values.ingress.enabled .Values.metrics.serviceMonitor.enabled) $policy.enabled (not $policy.extraFrom) -}}
{{- fail "the ingress controller and Prometheus may not reach the gateways: expected gateway.networkPolicy.extraFrom" -}}
{{- end -}}
{{- end -}}
