"""Servers that adapters are fetched from: HTTPS with a certificate of our own, on loopback."""
import base64
import hashlib
import http.server
import io
import ssl
import subprocess
import tarfile
import threading


def certificate(folder):
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout",
                    key, "-out", cert, "-subj", "/CN=localhost", "-days", "2", "-addext",
                    "subjectAltName=DNS:localhost,IP:127.0.0.1,IP:127.0.0.2"], check=True, capture_output=True)
    return cert, key


def key_digests(cert):
    """The pin of the certificate's key, as nodes of a fleet write it, and that of another key."""
    public = subprocess.run(["openssl", "x509", "-in", cert, "-noout", "-pubkey"], check=True, capture_output=True).stdout
    der = base64.b64decode(b"".join(public.split(b"\n")[1:-2]))
    return ["sha256//" + base64.b64encode(hashlib.sha256(d).digest()).decode() for d in (der, der + b".")]


def tar_of(files):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as t:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            t.addfile(info, io.BytesIO(data))
    return out.getvalue()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def answer(self, status, body=b"", length=None, **headers):
        """length False: none is told."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if length is not False:
            self.send_header("Content-Length", str(len(body) if length is None else length))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = True


def serve(port, handler, cert, key):
    class Quiet(http.server.ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request, client):
            pass

    httpd = Quiet(("127.0.0.1", port), handler)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(cert, key)
    httpd.socket = tls.wrap_socket(httpd.socket, server_side=True, do_handshake_on_connect=False)
    threading.Thread(target=httpd.serve_forever, daemon=True).start()
