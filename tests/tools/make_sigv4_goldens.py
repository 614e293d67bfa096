#!/usr/bin/env python3
"""What botocore's signer says: tests/fixtures/sigv4.json, for tests/gateway/fetch/test_source.c.  Needs botocore.

    python3 tests/tools/make_sigv4_goldens.py"""
import datetime
import hashlib
import json
import pathlib
from unittest import mock
from urllib.parse import quote

from botocore import auth, awsrequest, credentials

OUT = pathlib.Path(__file__).resolve().parents[1] / "fixtures/sigv4.json"
CASES = [
    ("AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", None, "us-east-1", "s3.example.com", "/bucket/a/adapter_config.json"),
    ("minio", "minio123", None, "eu-central-1", "store.internal:9000", "/b/prefix with blanks/x+y=z@1,2.safetensors"),
    ("ASIAEXAMPLE", "secret/with+signs=", "token//" + "AbC+" * 60, "ap-south-1", "s3.example.com", "/b-1/~user/a_b.c!$'()*:"),
    ("k", "s", None, "r", "h:1", "/x"),
    ("AKID2", "x" * 200, "t", "us-gov-west-1", "127.0.0.1:8443", "/bücket/schlüssel"),
]
# Of the operator's own store: bodies with their SHA-256.
DIGEST = "ab" * 32
CASES += [("AKID3", "s3/cr+t", None, "eu-west-1", "store.internal:9000", f"/adapters/fleet-1/sha256/{DIGEST}/{name}", method, body)
          for name in ("adapter_config.json", "adapter_model.safetensors")
          for method, body in (("PUT", b"weights"), ("GET", b""), ("HEAD", b""), ("DELETE", b""))]
CASES += [(f"AKID{i}", "q" * (i + 1), "t/+=" * i or None, f"region-{i}", f"h{i}.example:{1000 + i}", f"/b{i}/" + "p:@ ~%"[i % 6] * (i + 1), "PUT", bytes(range(i)))
          for i in range(20)]


def main():
    rows = []
    for i, (key, secret, session, region, host, path, *call) in enumerate(CASES):
        method, body = call or ("GET", None)  # None: it is not signed
        now = datetime.datetime(2026, 11, 23, (1 + i) % 24, 2, 3) + datetime.timedelta(days=40 * i)
        signer = auth.S3SigV4Auth(credentials.Credentials(key, secret, session), "s3", region)
        # Over HTTPS the payload of S3 is not signed where the configuration says so; the path goes as it is asked for.
        asked = quote(path, safe="/-._~")
        request = awsrequest.AWSRequest(method, f"https://{host}{asked}", data=body)
        request.context["client_config"] = mock.Mock(s3={"payload_signing_enabled": body is not None})
        request.context["payload_signing_enabled"] = body is not None
        with mock.patch("botocore.auth.get_current_datetime", lambda now=now: now, create=True), \
                mock.patch("botocore.auth.datetime", create=True) as clock:
            clock.datetime.utcnow.return_value = now
            signer.add_auth(request)
        payload = "UNSIGNED-PAYLOAD" if body is None else hashlib.sha256(body).hexdigest()
        assert request.headers["X-Amz-Content-SHA256"] == payload, request.headers
        rows.append({"method": method, "payload": payload, "id": key, "secret": secret, "session": session, "region": region, "host": host, "path": path,
                     "asked": asked, "time": int(now.replace(tzinfo=datetime.timezone.utc).timestamp()),
                     "date": request.headers["X-Amz-Date"], "authorization": request.headers["Authorization"]})
    OUT.write_text("[\n" + ",\n".join(json.dumps(r) for r in rows) + "\n]\n")


if __name__ == "__main__":
    main()
