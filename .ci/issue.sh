#!/usr/bin/env bash
# Opens an issue with the text that `make validate` wrote, once for each title; without a token for
# gh it prints that text. Nothing new is no text, and no issue.
set -euo pipefail
text=$1
if [ ! -s "$text" ]; then
    echo "nothing is new or red: no issue"
    exit 0
fi
title=$(head -n 1 "$text")
if [ -z "${GH_TOKEN:-}" ]; then
    cat "$text"
    exit 0
fi
open=$(gh issue list --state open --limit 200 --json title --jq '.[].title')
if grep -qxF -- "$title" <<<"$open"; then
    echo "there is an open issue of that title: $title"
    exit 0
fi
tail -n +3 "$text" | gh issue create --title "$title" --body-file -
