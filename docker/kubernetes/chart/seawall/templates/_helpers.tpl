{{- define "seawall.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 50 | trimSuffix "-" }}
{{- end }}

{{/* At most 50 characters, so that suffixes still fit into 63. */}}
{{- define "seawall.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- $name := include "seawall.name" . }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{/*
The name of the ConfigMap. Each configuration has its own: a changed one starts new pods, and
reaches no pod that runs already.
*/}}
{{- define "seawall.configName" -}}
{{- printf "%s-%s" (include "seawall.fullname" .) (.Values.config | sha256sum | trunc 10) }}
{{- end }}

{{- define "seawall.selectorLabels" -}}
app.kubernetes.io/name: {{ include "seawall.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "seawall.labels" -}}
{{ include "seawall.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "seawall.serviceAccountName" -}}
{{- if .Values.serviceAccount.create }}
{{- default (include "seawall.fullname" .) .Values.serviceAccount.name }}
{{- else }}
{{- default "default" .Values.serviceAccount.name }}
{{- end }}
{{- end }}

{{- define "seawall.image" -}}
{{- if .Values.image.digest }}
{{- printf "%s@%s" .Values.image.repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" .Values.image.repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{/* Stops with a clear message if the deployment is missing or given twice. */}}
{{- define "seawall.checkDeployment" -}}
{{- $inConfig := regexMatch `(?m)^([^#\n]*[\s.{,])?uri(_file)?\s*=` .Values.config }}
{{- if and (not .Values.deployment.uriSecret.name) (not $inConfig) }}
{{- fail (print "No deployment: set deployment.uriSecret.name to a Secret with the connection "
    "string, or write uri = \"mongodb://…\" below [deployment] in config.") }}
{{- end }}
{{- if and .Values.deployment.uriSecret.name $inConfig }}
{{- fail (print "Two deployments: deployment.uriSecret.name is set, and config contains uri or "
    "uri_file. Remove one of them.") }}
{{- end }}
{{- end }}

{{/* "true" if the configuration declares its own listeners, empty otherwise. */}}
{{- define "seawall.ownListeners" -}}
{{- if regexMatch `(?m)^\s*\[\[\s*listeners\s*\]\]` .Values.config }}true{{ end }}
{{- end }}

{{/* The wait of preStop, the drain, and 15 s to close clients, write files and exit. */}}
{{- define "seawall.gracePeriodSeconds" -}}
{{- add (int .Values.shutdown.preStopSeconds) (int .Values.shutdown.drainSeconds) 15 }}
{{- end }}
