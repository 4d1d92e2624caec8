#!/bin/sh
# The revision that binaries report. Called by Bazel for every build; never fails, so that a source archive builds too.
revision=$(git rev-parse --short=12 HEAD 2>/dev/null) || revision=unknown
if [ "$revision" != unknown ] && ! git diff-index --quiet HEAD -- 2>/dev/null; then
  revision="$revision-dirty"
fi
echo "BUILD_SCM_REVISION $revision"
