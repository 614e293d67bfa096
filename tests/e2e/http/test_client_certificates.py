"""admin.client_ca: without a certificate that this authority signed nobody gets through to the admin plane, with
one the key decides as ever; a reload changes the authority; the other planes ask for none."""
import os
import pathlib
import signal
import ssl
import subprocess
import tempfile
import time

from harness import BUILD, DEMO, PATIENCE, Server, run

KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")


def openssl(*argv):
    subprocess.run(["openssl", *map(str, argv)], check=True, capture_output=True)


def authority(name):
    ca, key = folder / f"{name}.pem", folder / f"{name}.key"
    openssl("req", "-x509", *KEY, "-keyout", key, "-out", ca, "-subj", f"/CN={name}")
    return ca, key


def client(name, by, extensions="extendedKeyUsage=clientAuth"):
    """(certificate, key), signed by an authority."""
    cert, key, asked, more = (folder / f"{name}.{x}" for x in ("pem", "key", "csr", "ext"))
    more.write_text(extensions + "\n")
    openssl("req", *KEY[:-2], "-keyout", key, "-out", asked, "-subj", f"/CN={name}")
    openssl("x509", "-req", "-in", asked, "-CA", by[0], "-CAkey", by[1], "-CAcreateserial", "-out", cert, "-days", 2,
            "-extfile", more)
    return cert, key


def gets(shown, version=None, key=None, port=None):
    """The status of a GET with this certificate; None: TLS lets nobody through."""
    tls = server.tls()
    if shown:
        tls.load_cert_chain(*shown)
    if version:
        tls.minimum_version = tls.maximum_version = version
    c = server.connect(port or server.admin_port, timeout=10)
    c._context = tls
    try:
        c.request("GET", "/admin/v1/classes" if port is None else "/healthz", headers={
            "Authorization": f"Bearer {key or server.admin_key}"})
        return c.getresponse().status
    except (ssl.SSLError, ConnectionError):
        return None
    finally:
        c.close()


def the_admin_plane_asks_for_one():
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        assert gets(operator, version) == 200
        assert gets(operator, version) == 200  # a second time: nothing is resumed
        assert gets(operator, version, key="lk_nobody") == 401
        for shown in (None, stranger, server_only):
            assert gets(shown, version) is None, (version, shown)


def the_others_do_not():
    assert gets(None, port=server.metrics_port) == 200
    assert server.call("GET", "/v1/models").status == 401


def loractl_shows_its_own():
    environment = {**os.environ, "LORAD_ADMIN_URL": f"https://localhost:{server.admin_port}", "LORAD_CA": server.ca,
                   "LORAD_ADMIN_KEY": server.admin_key, "HOME": str(folder)}
    argv = [BUILD / "loractl", "tenant", "list", "-o", "json"]
    for shown in (None, stranger):
        files = {"LORAD_CERT": str(shown[0]), "LORAD_CERT_KEY": str(shown[1])} if shown else {}
        for _ in range(20):  # whether the server's alert is read before the connection ends is a matter of time
            r = subprocess.run(argv, env={**environment, **files}, capture_output=True, text=True, timeout=30 * PATIENCE)
            assert r.returncode == 3 and "client certificate" in r.stderr, (shown, r)
    r = subprocess.run(argv, env={**environment, "LORAD_CERT": str(operator[0]), "LORAD_CERT_KEY": str(operator[1])},
                       capture_output=True, text=True, timeout=30 * PATIENCE)
    assert r.returncode == 0, r


def a_reload_changes_the_authority():
    old = ours[0].read_text()
    for text, good, bad, says in ((theirs[0].read_text(), stranger, operator, "reloaded: the certificate"),
                                  ("no certificate", stranger, operator, "reload refused, the old config stays"),
                                  (old, operator, stranger, "reloaded: the certificate")):
        before = server.log_path.read_text().count(says)
        ours[0].write_text(text)
        server.process.send_signal(signal.SIGHUP)
        end = time.monotonic() + 20 * PATIENCE
        while server.log_path.read_text().count(says) == before:
            assert time.monotonic() < end, f"the log never says '{says}'"
            time.sleep(0.02)
        assert gets(good) == 200 and gets(bad) is None, says


def check_says_what_is_wrong():
    argv = [BUILD / "lorad", "check", "-c", server.dir / "lorad.conf", "--set", "admin.client_ca="]
    for path, code in ((ours[0], 0), (folder / "nowhere.pem", 1)):
        r = subprocess.run([*argv[:-1], f"admin.client_ca={path}"], capture_output=True, text=True, timeout=60 * PATIENCE)
        assert r.returncode == code and (code == 0 or "admin.client_ca" in r.stderr), r


with tempfile.TemporaryDirectory(prefix="lorad-ca-") as d:
    folder = pathlib.Path(d)
    ours, theirs = authority("ours"), authority("theirs")
    operator, stranger = client("operator", ours), client("stranger", theirs)
    server_only = client("server", ours, "extendedKeyUsage=serverAuth")
    server = Server(model=DEMO / "base", settings={"admin.client_ca": ours[0]})
    with server:
        run([the_admin_plane_asks_for_one, the_others_do_not, loractl_shows_its_own, a_reload_changes_the_authority,
             check_says_what_is_wrong])
