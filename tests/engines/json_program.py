"""A program that answers another process, by lines of JSON on its standard input and output.

A request names a function in "do"; what else it has are the function's arguments. Its answer is {"value": RESULT}, or
{"error": TEXT} for an exception.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable
from typing import Any


def answer_requests(*functions: "Callable[..., Any]") -> None:
    """Answers until standard input ends. Whatever else is printed goes to standard error."""
    named = {function.__name__: function for function in functions}
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    for line in sys.stdin:
        try:
            request = json.loads(line)
            answer = {"value": named[request.pop("do")](**request)}
        except Exception:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), file=answers)
