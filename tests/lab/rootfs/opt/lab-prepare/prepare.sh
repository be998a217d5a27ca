#!/bin/sh
# Runs once, while the bare root is made: puts the images into this host's Docker.
# The roots of the images are bound at /opt/lab-prepare/images by the build.
set -eu
key=$1

import() { # root, image, command
    tar -C "/opt/lab-prepare/images/$1" --one-file-system --exclude="./dev/*" --exclude="./proc/*" --exclude="./sys/*" -c . |
        docker import --change "LABEL gb10.lab.key=$1-$key" --change "CMD [\"$3\"]" \
            --change "ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin" - "$2"
}

import devel standin/cuda-devel:trixie bash
import runtime standin/cuda-runtime:trixie bash

lane=$(mktemp -d)
mkdir -p "$lane/bin" "$lane/www/v1" "$lane/tmp"
cp /bin/busybox "$lane/bin/busybox"
echo '{}' > "$lane/www/health"
echo '{"object":"list","data":[{"id":"coder-next-awq","object":"model"}]}' > "$lane/www/v1/models"
tar -C "$lane" -c . | docker import --change "LABEL gb10.lab.key=$key" --change "EXPOSE 8000" \
    --change 'ENTRYPOINT ["/bin/busybox","httpd","-f","-p","8000","-h","/www"]' - standin/vllm:old
rm -rf "$lane"

# What an earlier life of lane B left behind.
docker create --name vllm-lane-b-old standin/vllm:old
echo prepared > /opt/lab-prepare/done
