#!/usr/bin/env bash
# Writes a random key for the replica set, unless there is one. Runs as root in the image of
# MongoDB. The server runs as the user mongodb, and refuses a key file that other users can read.
set -euo pipefail

file=/keyfile/keyfile
if [[ ! -s $file ]]; then
    umask 077
    head --bytes 756 /dev/urandom | base64 --wrap 0 > "$file.new"
    mv "$file.new" "$file"
fi
chown mongodb:mongodb "$file"
chmod 0400 "$file"
