"""s3.py -- an S3 API over a dictionary, which takes nothing that is not signed as AWS says; slow, away or damaged when told."""
import datetime
import hashlib
import hmac
import http.server
import re
import threading
import time

KEY, SECRET, REGION = "AKIDTEST", "hidden+secret/of=the-store", "eu-north-1"
AUTHORIZATION = re.compile(r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/s3/aws4_request, SignedHeaders=([a-z0-9;-]+), "
                           r"Signature=([0-9a-f]{64})")


def signature(method, path, headers, names, payload, date):
    """Signature Version 4 of a call without a query, by the words of its specification."""
    canonical = "\n".join([method, path, "", *(f"{n}:{headers[n].strip()}" for n in names), "", ";".join(names), payload])
    scope = f"{date[:8]}/{REGION}/s3/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", date, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = ("AWS4" + SECRET).encode()
    for part in (date[:8], REGION, "s3", "aws4_request", text):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    return key.hex()


class S3:
    """with S3() as s: s.objects {path: bytes}, s.calls [(method, path)]."""

    def __init__(self, rate=None):
        self.objects, self.calls, self.refused = {}, [], []
        self.rate, self.away = rate, 0  # bytes a second of a GET; how many calls get 503
        store = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def answer(self, status, body=b""):
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command != "HEAD":
                    store.send(self.wfile, body)

            def is_signed(self, body):
                got = AUTHORIZATION.fullmatch(self.headers.get("Authorization", ""))
                payload, date = (self.headers.get(n, "") for n in ("x-amz-content-sha256", "x-amz-date"))
                if not got or got[1] != KEY or got[3] != REGION or payload != hashlib.sha256(body).hexdigest():
                    return False
                names = got[4].split(";")
                told = datetime.datetime.strptime(date, "%Y%m%dT%H%M%SZ").replace(tzinfo=datetime.timezone.utc)
                fresh = abs((datetime.datetime.now(datetime.timezone.utc) - told).total_seconds()) < 900
                needed = {"host", "x-amz-content-sha256", "x-amz-date"} <= set(names)
                return fresh and needed and got[5] == signature(self.command, self.path, self.headers, names, payload, date)

            def serve(self):
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                store.calls.append((self.command, self.path))
                if store.away:
                    store.away -= 1
                    return self.answer(503, b"slow down")
                if not self.is_signed(body):
                    store.refused.append((self.command, self.path))
                    return self.answer(403, b"SignatureDoesNotMatch")
                if self.command == "PUT":
                    store.objects[self.path] = body
                    return self.answer(200)
                if self.command == "DELETE":
                    store.objects.pop(self.path, None)
                    return self.answer(204)
                have = store.objects.get(self.path)
                self.answer(404) if have is None else self.answer(200, have)

            do_GET = do_HEAD = do_PUT = do_DELETE = serve

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads, request_queue_size = True, 128

            def handle_error(self, request, client):
                pass  # a client that goes away

        self.httpd = Server(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self.httpd.server_port}"
        threading.Thread(target=self.httpd.serve_forever, daemon=True).start()

    def send(self, to, body):
        if not self.rate:
            to.write(body)
            return
        piece = max(1, int(self.rate / 50))
        begin = time.monotonic()
        for at in range(0, len(body), piece):
            to.write(body[at:at + piece])
            time.sleep(max(0, begin + (at + piece) / self.rate - time.monotonic()))

    def settings(self, credentials):
        """Options of a server; `credentials`: where to write the keys."""
        credentials.write_text(f"{KEY}\n{SECRET}\n")
        credentials.chmod(0o600)
        return {"store.url": "s3://adapters/fleet-1", "store.endpoint": self.endpoint, "store.region": REGION,
                "store.credentials_file": credentials}

    def count(self, method, ending=""):
        return sum(m == method and p.endswith(ending) for m, p in list(self.calls))

    def close(self):
        self.httpd.shutdown()
        self.httpd.server_close()
