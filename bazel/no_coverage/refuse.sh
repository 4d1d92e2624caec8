#!/bin/sh
echo "coverage reports are not set up in this build" >&2
exit 1
