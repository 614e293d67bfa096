"""TLS as openssl and curl see it: versions, the certificate's name, a reload without losing anyone."""
import email.utils
import signal
import subprocess
import time

from harness import PATIENCE, Server, run

server = Server()


def s_client(*options):
    r = subprocess.run(["openssl", "s_client", "-connect", f"127.0.0.1:{server.port}", "-servername",
                        "localhost", "-CAfile", server.ca, "-verify_return_error", *options],
                       input="", capture_output=True, text=True, timeout=20 * PATIENCE)
    return r.returncode, r.stdout + r.stderr


def speaks_tls_1_3_and_1_2_only():
    for option, version in [("-tls1_3", "TLSv1.3"), ("-tls1_2", "TLSv1.2")]:
        code, out = s_client(option)
        assert code == 0 and version in out and "Verify return code: 0" in out, out
    for option in ("-tls1_1", "-tls1"):
        code, out = s_client(option, "-cipher", "DEFAULT:@SECLEVEL=0")
        assert code != 0, out
    code, out = s_client("-tls1_2", "-cipher", "AES128-SHA")
    assert code != 0, out


def the_certificate_is_no_longer_valid_than_clients_take():
    for days, code in ((396, 0), (398, 1)):
        r = subprocess.run(["openssl", "x509", "-in", server.ca, "-noout", "-checkend", str(days * 86400)],
                           capture_output=True, text=True, timeout=20 * PATIENCE)
        assert r.returncode == code, (days, r.stdout)


def every_answer_has_its_date():
    for method, path in (("GET", "/v1/models"), ("GET", "/nowhere"), ("POST", "/v1/completions")):
        r = server.call(method, path, key=key)
        assert abs(email.utils.parsedate_to_datetime(r.headers["date"]).timestamp() - time.time()) < 60, r.headers


def plain_http_gets_nothing():
    r = subprocess.run(["curl", "-s", "-m", "5", f"http://127.0.0.1:{server.port}/v1/models"],
                       capture_output=True, timeout=20 * PATIENCE)
    assert r.returncode != 0 or b"data" not in r.stdout, r


def curl_streams():
    r = subprocess.run(
        ["curl", "-sN", "-m", "20", "--cacert", server.ca, "-H", f"Authorization: Bearer {key}", "-H",
         "Content-Type: application/json", "-d",
         '{"model":"base","prompt":"The","max_tokens":4,"stream":true,"ignore_eos":true}',
         f"https://localhost:{server.port}/v1/completions"], capture_output=True, text=True,
        timeout=30 * PATIENCE)
    assert r.returncode == 0 and r.stdout.endswith("data: [DONE]\n\n"), r


def a_bad_certificate_is_not_taken_over():
    cert = server.dir / "tls/cert.pem"
    good = cert.read_text()
    cert.write_text("garbage")
    server.process.send_signal(signal.SIGHUP)
    end = time.monotonic() + 10 * PATIENCE
    while "reload refused, the old config stays" not in server.log_path.read_text():
        assert time.monotonic() < end, "no word about the bad certificate"
        time.sleep(0.05)
    cert.write_text(good)
    assert server.call("GET", "/v1/models", key=key).status == 200


with server:
    key = server.tenant("alice")
    run([speaks_tls_1_3_and_1_2_only, the_certificate_is_no_longer_valid_than_clients_take,
         every_answer_has_its_date, plain_http_gets_nothing, curl_streams,
         a_bad_certificate_is_not_taken_over])
