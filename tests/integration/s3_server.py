"""moto's S3 store in memory. It refuses requests that are not signed as botocore signs them. Run as a process.

s3_server.py PORT KEYS  # KEYS: JSON, {access key: {"secret": ..., "token": "", "expired": false}}, read at each request
"""

import hashlib
import io
import json
import sys
from pathlib import Path

from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import WSGIRequestHandler, make_server
from werkzeug.test import Client
from werkzeug.wrappers import Request, Response

BUCKETS = ("weights",)


def refusal(code: str, status: int = 403) -> Response:
    return Response(f"<Error><Code>{code}</Code><Message>no</Message></Error>", status, mimetype="application/xml")


def why_refused(request: Request, keys: dict) -> "str | None":
    """The code of the error that S3 would answer; None for a request that is signed as botocore signs it."""
    authorization = request.headers.get("Authorization", "")
    fields = dict(part.strip().split("=", 1) for part in authorization.partition(" ")[2].split(","))
    access, _, region, _, _ = fields["Credential"].split("/")
    known = keys.get(access)
    if known is None:
        return "InvalidAccessKeyId"
    if known.get("expired"):
        return "ExpiredToken"
    if known.get("token", "") != request.headers.get("x-amz-security-token", ""):
        return "InvalidToken"
    signed = {name: request.headers[name] for name in fields["SignedHeaders"].split(";")}
    if hashlib.sha256(request.get_data()).hexdigest() != signed["x-amz-content-sha256"]:
        return "XAmzContentSHA256Mismatch"
    ours = AWSRequest(request.method, request.base_url + "?" + request.query_string.decode(), headers=signed)
    ours.context["timestamp"] = signed["x-amz-date"]
    auth = S3SigV4Auth(Credentials(access, known["secret"], known.get("token") or None), "s3", region)
    signature = auth.signature(auth.string_to_sign(ours, auth.canonical_request(ours)), ours)
    return None if signature == fields["Signature"] else "SignatureDoesNotMatch"


class Signed:
    """The application, for requests that are signed."""

    def __init__(self, application, keys: Path) -> None:
        self.application = application
        self.keys = keys

    def __call__(self, environ, start_response):
        request = Request(environ)
        try:
            refused = why_refused(request, json.loads(self.keys.read_text()))
        except (KeyError, ValueError) as error:
            refused = f"Malformed-{type(error).__name__}"
        environ["wsgi.input"] = io.BytesIO(request.get_data())  # it was read here
        if refused:
            print(f"refused: {refused}: {request.method} {request.full_path}", file=sys.stderr, flush=True)
            return refusal(refused)(environ, start_response)
        return self.application(environ, start_response)


class Handler(WSGIRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_request(self, *_) -> None:
        pass


def main() -> None:
    port, keys = int(sys.argv[1]), Path(sys.argv[2])
    application = DomainDispatcherApplication(create_backend_app)
    for bucket in BUCKETS:
        made = Client(application).put(f"/{bucket}", base_url=f"http://127.0.0.1:{port}")
        assert made.status_code == 200, made.text
    server = make_server("127.0.0.1", port, Signed(application, keys), threaded=True, request_handler=Handler)
    print("ready", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
