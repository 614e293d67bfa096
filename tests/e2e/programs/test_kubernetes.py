"""The chart and the manifests of conf/: as the published schemas have it, of one piece, and of a server that is so.

The fields are those of Kubernetes 1.28 and later, of inference.networking.k8s.io/v1 and of the picker's configuration; what
is not named here is refused, as kubeconform -strict does.  The commands of the pods are run as they stand, with a PostgreSQL."""
import copy
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import urllib.request

import postgres
from harness import BUILD, DEMO, ROOT, Server, free_port, run, until

sys.path[1:1] = [str(ROOT / "tests/tools")]
sys.path += map(str, (ROOT / "build/venv-schema/lib").glob("python3*/site-packages"))
try:
    import yaml

    import make_kubernetes as made
except ImportError as e:
    print(f"skipped: {e} (sh tests/run.sh makes build/venv-schema, which has PyYAML)")
    sys.exit(77)

# ------------------------------------------------------------------------------------------------- fields

TEXT, WHOLE, TRUTH, ANY = str, int, bool, object
IMAGE = re.compile(r"[a-z0-9][a-z0-9._/:-]*?(:[A-Za-z0-9_][\w.-]{0,127})?(@sha256:[0-9a-f]{64})?")
DNS = re.compile(r"(\*\.)?[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
QUANTITY = re.compile(r"\d+(\.\d+)?(m|k|[KMGT]i?)?")
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
SECONDS = re.compile(r"\d{1,5}[sh]")


class Map:
    """Any keys, values of one kind."""

    def __init__(self, of):
        self.of = of


class Some:
    """One of these texts."""

    def __init__(self, *words):
        self.words = words


LABELS = Map(TEXT)
META = {"name!": NAME, "labels": LABELS, "annotations": LABELS}
SELECTOR = {"matchLabels!": LABELS}
PORT_NAME = (WHOLE, NAME)
PROBE = {"httpGet!": {"path!": TEXT, "port!": PORT_NAME, "scheme": Some("HTTP", "HTTPS")}, "periodSeconds": WHOLE,
         "timeoutSeconds": WHOLE, "failureThreshold": WHOLE}
CONTAINER = {
    "name!": NAME, "image!": IMAGE, "imagePullPolicy": Some("Always", "IfNotPresent", "Never"), "command": [TEXT], "args": [TEXT],
    "envFrom": [{"configMapRef!": {"name!": NAME}}],
    "env": [{"name!": TEXT, "value": TEXT, "valueFrom": {"fieldRef!": {"fieldPath!": TEXT}}}],
    "ports": [{"name!": NAME, "containerPort!": WHOLE}], "lifecycle": {"preStop!": {"exec!": {"command!": [TEXT]}}},
    "startupProbe": PROBE, "readinessProbe": PROBE, "livenessProbe": PROBE,
    "resources": {"requests": Map(QUANTITY), "limits": Map(QUANTITY)},
    "securityContext": {"allowPrivilegeEscalation": TRUTH, "readOnlyRootFilesystem": TRUTH, "capabilities": {"drop!": [TEXT]}},
    "volumeMounts": [{"name!": NAME, "mountPath!": TEXT, "readOnly": TRUTH}]}
POD = {
    "metadata": {"labels": LABELS},
    "spec!": {
        "terminationGracePeriodSeconds": WHOLE, "automountServiceAccountToken": TRUTH, "restartPolicy": Some("Never", "OnFailure"),
        "securityContext": {"runAsNonRoot": TRUTH, "runAsUser": WHOLE, "runAsGroup": WHOLE, "fsGroup": WHOLE,
                            "fsGroupChangePolicy": Some("OnRootMismatch", "Always"), "seccompProfile": {"type!": TEXT}},
        "runtimeClassName": (TEXT, type(None)), "nodeSelector": LABELS,
        "tolerations": [{"key": TEXT, "operator": Some("Exists", "Equal"), "value": TEXT, "effect": TEXT}], "initContainers": [CONTAINER], "containers!": [CONTAINER],
        "volumes": [{"name!": NAME, "emptyDir": {"sizeLimit": QUANTITY}, "persistentVolumeClaim": {"claimName!": NAME, "readOnly": TRUTH},
                     "secret": {"secretName!": NAME, "defaultMode": WHOLE, "optional": TRUTH}}]}}
PEER = {"podSelector": SELECTOR, "namespaceSelector": SELECTOR}
POLICY_PORT = {"port": PORT_NAME, "protocol": Some("TCP", "UDP")}
MATCH = {"path!": {"type!": Some("Exact", "PathPrefix"), "value!": TEXT}}
BACKEND = {"group": TEXT, "kind": TEXT, "name!": NAME, "port": WHOLE}
SPECS = {
    ("apps/v1", "StatefulSet"): {
        "serviceName!": NAME, "replicas": WHOLE, "podManagementPolicy": Some("Parallel", "OrderedReady"), "selector!": SELECTOR,
        "template!": POD, "volumeClaimTemplates": [{"metadata!": META, "spec!": {
            "accessModes!": [TEXT], "storageClassName": (TEXT, type(None)), "resources!": {"requests!": Map(QUANTITY)}}}]},
    ("batch/v1", "Job"): {"backoffLimit": WHOLE, "template!": POD},
    ("v1", "Service"): {"clusterIP": TEXT, "publishNotReadyAddresses": TRUTH, "selector!": LABELS,
                        "ports!": [{"name!": NAME, "port!": WHOLE, "targetPort": PORT_NAME}]},
    ("policy/v1", "PodDisruptionBudget"): {"maxUnavailable": WHOLE, "selector!": SELECTOR},
    ("autoscaling/v2", "HorizontalPodAutoscaler"): {
        "scaleTargetRef!": {"apiVersion": TEXT, "kind!": TEXT, "name!": NAME}, "minReplicas": WHOLE, "maxReplicas!": WHOLE,
        "metrics": [{"type!": Some("Pods"), "pods": {"metric!": {"name!": TEXT}, "target!": {
            "type!": Some("AverageValue"), "averageValue": QUANTITY}}}],
        "behavior": Map({"stabilizationWindowSeconds": WHOLE,
                         "policies": [{"type!": Some("Pods", "Percent"), "value!": WHOLE, "periodSeconds!": WHOLE}]})},
    ("networking.k8s.io/v1", "NetworkPolicy"): {
        "podSelector!": SELECTOR, "policyTypes": [Some("Ingress", "Egress")],
        "ingress": [{"ports": [POLICY_PORT], "from": [PEER]}], "egress": [{"ports": [POLICY_PORT], "to": [PEER]}]},
    ("inference.networking.k8s.io/v1", "InferencePool"): {
        "selector!": SELECTOR, "targetPorts!": [{"number!": WHOLE}], "appProtocol": Some("http", "kubernetes.io/h2c"),
        "endpointPickerRef": {"group": TEXT, "kind": TEXT, "name!": NAME, "port": {"number!": WHOLE},
                              "failureMode": Some("FailOpen", "FailClose")}},
    ("cert-manager.io/v1", "Certificate"): {
        "secretName!": NAME, "duration": SECONDS, "renewBefore": SECONDS, "dnsNames": [DNS],
        "privateKey": {"algorithm": Some("RSA", "ECDSA", "Ed25519"), "size": WHOLE, "rotationPolicy": Some("Never", "Always")},
        "issuerRef!": {"name!": NAME, "kind": Some("Issuer", "ClusterIssuer"), "group": TEXT}},
    ("monitoring.coreos.com/v1", "PodMonitor"): {
        "selector!": SELECTOR, "podMetricsEndpoints": [{
            "port": NAME, "scheme": Some("http", "https"), "interval": SECONDS,
            "tlsConfig": {"insecureSkipVerify": TRUTH, "serverName": TEXT, "ca": {"secret": {"name!": NAME, "key!": TEXT}}}}]},
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): {
        "parentRefs": [{"group": TEXT, "kind": TEXT, "name!": NAME}],
        "rules": [{"matches": [MATCH], "backendRefs": [BACKEND], "timeouts": {"request": SECONDS}}]},
}
WHOLES = {("v1", "ConfigMap"): {"data!": Map(TEXT)}, ("v1", "Secret"): {"type": TEXT, "stringData!": Map(TEXT)},
          ("kustomize.config.k8s.io/v1beta1", "Kustomization"): {"resources!": [TEXT]}}
WHOLES |= {kind: {"spec!": spec} for kind, spec in SPECS.items()}
PICKER = {"apiVersion!": Some("inference.networking.x-k8s.io/v1alpha1"), "kind!": Some("EndpointPickerConfig"),
          "plugins!": [{"type!": Some(*(f"{n}-scorer" for n in ("queue", "kv-cache-utilization", "lora-affinity", "prefix-cache")),
                                      "max-score-picker", "single-profile-handler"), "name": TEXT}],
          "schedulingProfiles!": [{"name!": TEXT, "plugins!": [{"pluginRef!": TEXT, "weight": (int, float)}]}]}


def fits(value, kind, at):
    """Raises AssertionError, which says where."""
    if isinstance(kind, dict):
        assert isinstance(value, dict), at
        known = {k.rstrip("!"): v for k, v in kind.items()}
        for key in value:
            assert key in known, f"{at} has no field {key}"
            fits(value[key], known[key], f"{at}.{key}")
        for key in kind:
            assert key[-1] != "!" or key[:-1] in value, f"{at}.{key[:-1]} is missing"
    elif isinstance(kind, list):
        assert isinstance(value, list), at
        for i, item in enumerate(value):
            fits(item, kind[0], f"{at}[{i}]")
    elif isinstance(kind, Map):
        assert isinstance(value, dict), at
        for key, item in value.items():
            fits(item, kind.of, f"{at}.{key}")
    elif isinstance(kind, Some):
        assert value in kind.words, f"{at}: {value!r}"
    elif isinstance(kind, re.Pattern):
        assert kind.fullmatch(str(value)), f"{at}: {value!r}"
    elif isinstance(kind, tuple) and re.Pattern in map(type, kind):
        fits(value, WHOLE if isinstance(value, int) else NAME, at)
    else:
        assert isinstance(value, kind) and (kind is not int or not isinstance(value, bool)), f"{at}: {value!r}"


# ------------------------------------------------------------------------------------------- of one piece


def objects(text):
    return [o for o in yaml.safe_load_all(text) if o]


def rendered(*files, **over):
    """All objects of the chart, {(kind, name): object}."""
    v = made.values(*files, **over)
    return {(o["kind"], o["metadata"]["name"]): o for f in sorted((made.CHART / "templates").iterdir())
            for o in objects(made.template(f.name, v))}


CERTIFICATE = {"secretName": "lorad-tls", "certManager": {"issuer": "ours"}, "names": ["llm.example.com", "admin.llm.example.com"]}
FULL = {"gateway": {"enabled": True}, "secret": {"create": True}, "monitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "tls": CERTIFICATE}


VARIANTS = [((), {}), ((), FULL), (("values-gpu.yaml",), {}), (("values-gpu.yaml",), FULL), ((), {"autoscaler": {"enabled": False}, "replicas": 3}),
            ((), {"network": {"enabled": False}, "tls": {"secretName": "lorad-tls"}}),
            ((), {"image": {"name": "registry.example:5000/lorad", "tag": "0.2.0", "digest": "sha256:" + "0a" * 32}}),
            ((), {"model": {"path": "hf://me/plain@main", "volume": {"emptyDir": {}, "persistentVolumeClaim": None}},
                  "options": {"LORAD_SOURCES_HUB": "https://hub.example.com"}}),
            ((), {"monitor": {"enabled": True, "tlsConfig": {"insecureSkipVerify": False, "serverName": "lorad",
                                                             "ca": {"secret": {"name": "lorad-tls", "key": "ca.crt"}}}}, "tls": CERTIFICATE})]


def containers(o):
    spec = o["spec"]["template"]["spec"]
    return [*spec.get("initContainers", ()), *spec["containers"]]


def check(all_):
    """Fields, and that each name leads to something."""
    options = set(re.findall(r"^(\w+) =", subprocess.run([BUILD / "lorad", "--print-conf"], capture_output=True, text=True).stdout, re.M))
    pods = all_["StatefulSet", "lorad"]["spec"]["template"]
    ports = {p["name"]: p["containerPort"] for p in pods["spec"]["containers"][0]["ports"]}
    for (kind, name), o in all_.items():
        fits(o, {"apiVersion!": TEXT, "kind!": TEXT, "metadata!": META, **WHOLES[o["apiVersion"], kind]}, f"{kind} {name}")
        for selector in (o.get("spec", {}).get("selector"), o.get("spec", {}).get("podSelector")):
            wanted = (selector or {}).get("matchLabels", selector)
            assert wanted is None or wanted.items() <= pods["metadata"]["labels"].items(), f"{kind} {name} selects nothing"
        if kind in ("StatefulSet", "Job"):
            volumes = {v["name"] for v in o["spec"]["template"]["spec"]["volumes"]} | {
                t["metadata"]["name"] for t in o["spec"].get("volumeClaimTemplates", ())}
            for c in containers(o):
                assert {m["name"] for m in c["volumeMounts"]} <= volumes, f"{kind} {name}: a volume is missing"
                assert all(("ConfigMap", f["configMapRef"]["name"]) in all_ for f in c["envFrom"]), f"{kind} {name}: no such ConfigMap"
                for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                    assert probe not in c or c[probe]["httpGet"]["port"] in ports, f"{kind} {name}: {probe}"
    for key in all_["ConfigMap", "lorad"]["data"]:
        assert re.fullmatch("LORAD_[A-Z]+_[A-Z_]+", key) and key.split("_", 2)[2].lower() in options, f"no such option: {key}"
    for service in (o for (kind, _), o in all_.items() if kind == "Service"):
        assert all(p["targetPort"] in ports and ports[p["targetPort"]] == p["port"] for p in service["spec"]["ports"]), "Service's port"
    if ("NetworkPolicy", "lorad") in all_:
        assert all(p["port"] in ports for rule in all_["NetworkPolicy", "lorad"]["spec"]["ingress"] for p in rule["ports"]), "NetworkPolicy's port"
    servers = all_["StatefulSet", "lorad"]["spec"]
    assert ("Service", servers["serviceName"]) in all_, "serviceName"
    if ("HorizontalPodAutoscaler", "lorad") in all_:
        scaler = all_["HorizontalPodAutoscaler", "lorad"]["spec"]
        assert (scaler["scaleTargetRef"]["kind"], scaler["scaleTargetRef"]["name"]) in all_, "scaleTargetRef"
        assert scaler["minReplicas"] <= scaler["maxReplicas"] and "replicas" not in servers, "replicas"
    if ("PodMonitor", "lorad") in all_:
        assert all(p["port"] in ports for p in all_["PodMonitor", "lorad"]["spec"]["podMetricsEndpoints"]), "PodMonitor's port"
    if ("Certificate", "lorad") in all_:
        certificate, mounted = all_["Certificate", "lorad"]["spec"], {v.get("secret", {}).get("secretName") for v in pods["spec"]["volumes"]}
        assert certificate["secretName"] in mounted, "the certificate is not mounted"
        hosts = {name for (kind, name) in all_ if kind == "Service"}
        assert all(h in certificate["dnsNames"] or f"*.{h}" in certificate["dnsNames"] for h in hosts), "a Service is not in the certificate"
    if ("InferencePool", "lorad") not in all_:
        return
    pool = all_["InferencePool", "lorad"]["spec"]
    assert [p["number"] for p in pool["targetPorts"]] == [ports["plain"]], "InferencePool's port"
    for rule in all_["HTTPRoute", "lorad"]["spec"]["rules"]:
        for to in rule["backendRefs"]:
            assert (to.get("kind", "Service"), to["name"]) in all_ and (("group" in to) == ("kind" in to)), "backendRefs"
    picker = yaml.safe_load(all_["ConfigMap", pool["endpointPickerRef"]["name"]]["data"]["lorad.yaml"])
    fits(picker, PICKER, "EndpointPickerConfig")
    plugins = [p.get("name", p["type"]) for p in picker["plugins"]]
    used = [p["pluginRef"] for profile in picker["schedulingProfiles"] for p in profile["plugins"]]
    assert set(used) <= set(plugins) and len(set(used)) == len(used) and "max-score-picker" in used, "plugins"


def the_chart_is_sound():
    for files, over in VARIANTS:
        check(rendered(*files, **over))
    least = rendered(database="", replicas=1, autoscaler={"enabled": True}, network={"enabled": True})
    check(least)
    assert not any(kind in ("Job", "Secret", "InferencePool") for kind, _ in least)
    a_certificate_of_ones_own()
    fits(yaml.safe_load((made.CHART / "Chart.yaml").read_text()),
         {f"{k}!": TEXT for k in ("apiVersion", "name", "description", "type", "version", "appVersion", "kubeVersion")}, "Chart.yaml")


def a_certificate_of_ones_own():
    """tls.secretName: the server reads what is mounted, and the pod does not name the certificate of localhost.  An autoscaler owns the replicas."""
    own = rendered(tls={"secretName": "lorad-tls"}, autoscaler={"enabled": False})
    pod = own["StatefulSet", "lorad"]["spec"]["template"]["spec"]
    server = pod["containers"][0]
    mounted = {m["name"]: m["mountPath"] for m in server["volumeMounts"]}
    assert {v["name"]: v.get("secret", {}).get("secretName") for v in pod["volumes"]}["tls"] == "lorad-tls"
    assert server["args"][3:] == ["--set", f"server.tls_cert={mounted['tls']}/tls.crt", "--set", f"server.tls_key={mounted['tls']}/tls.key"]
    assert not any(e["name"] == "LORAD_CA" for e in server["env"])
    assert own["StatefulSet", "lorad"]["spec"]["replicas"] == 2 and "replicas" not in rendered()["StatefulSet", "lorad"]["spec"]


def what_values_ask_for():
    """Image by digest, a GPU, certificate names of the pods and of the admin plane, the monitor's labels; no key is printed."""
    image = {"name": "registry.example/lorad", "tag": "0.2.0", "digest": "sha256:" + "0a" * 32}
    for values, wanted in (({}, "lorad"), ({"tag": "0.2.0"}, "lorad:0.2.0"), (image, f"registry.example/lorad:0.2.0@{image['digest']}")):
        all_ = rendered(image=values)
        assert {c["image"] for kind in ("StatefulSet", "Job") for (k, _), o in all_.items() if k == kind for c in containers(o)} == {wanted}
    gpu = rendered("values-gpu.yaml")["StatefulSet", "lorad"]["spec"]["template"]["spec"]
    assert gpu["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == 1 and gpu["runtimeClassName"] == "nvidia"
    assert "nvidia.com/gpu" not in str(gpu["initContainers"]) and gpu["tolerations"][0]["key"] == "nvidia.com/gpu"
    full = rendered(**FULL)
    names = full["Certificate", "lorad"]["spec"]["dnsNames"]
    for name in ("localhost", "lorad", "lorad.default.svc", "*.lorad-servers.default.svc.cluster.local", "llm.example.com", "admin.llm.example.com"):
        assert name in names, names
    assert full["PodMonitor", "lorad"]["metadata"]["labels"]["release"] == "prometheus"
    for o in (rendered(database="")["StatefulSet", "lorad"], full["Job", "lorad-found"]):
        assert "--admin-key-file /etc/lorad/admin.key" in containers(o)[0]["command"][2], o


def faults_are_found():
    """Each of these in a chart that is sound otherwise."""
    whole = rendered(**FULL)
    for at, value in ((("StatefulSet", "spec", "replica"), 2), (("StatefulSet", "spec", "replicas"), "2"),
                      (("StatefulSet", "spec", "serviceName"), "other"), (("Service", "spec", "selector", "app"), "lorad"),
                      (("Service", "spec", "ports", 0, "targetPort"), "http"), (("ConfigMap", "data", "LORAD_SERVER_PLAINLISTEN"), ""),
                      (("PodDisruptionBudget", "spec", "maxUnavailable"), True), (("NetworkPolicy", "spec", "ingress", 0, "ports", 0, "port"), "web"),
                      (("InferencePool", "spec", "targetPorts", 0, "number"), 8443), (("HTTPRoute", "spec", "rules", 0, "backendRefs", 0, "name"), "x"),
                      (("InferencePool", "spec", "endpointPickerRef", "failureMode"), "Open"),
                      (("Certificate", "spec", "secretName"), "other"), (("Certificate", "spec", "dnsNames"), ["localhost"]),
                      (("Certificate", "spec", "issuerRef", "kind"), "Other"), (("PodMonitor", "spec", "podMetricsEndpoints", 0, "port"), "plain2"),
                      (("StatefulSet", "spec", "replicas"), 2), (("StatefulSet", "spec", "template", "spec", "containers", 0, "image"), "lorad@sha256:1"),
                      (("HorizontalPodAutoscaler", "spec", "minReplicas"), 9)):
        broken = copy.deepcopy(whole)
        into = broken[at[0], "lorad"]
        for key in at[1:-1]:
            into = into[key]
        into[at[-1]] = value
        try:
            check(broken)
        except AssertionError:
            continue
        raise AssertionError(f"not found: {at} = {value!r}")


def what_kustomize_takes_is_current():
    assert not made.stale(), f"tests/tools/make_kubernetes.py makes anew: {made.stale()}"
    seen = {}
    for folder in made.FOLDERS:
        k = objects((made.MADE / folder / "kustomization.yaml").read_text())[0]
        fits(k, {"apiVersion!": TEXT, "kind!": TEXT, **WHOLES[k["apiVersion"], k["kind"]]}, folder)
        for name in k["resources"]:
            path = made.MADE / folder / name
            assert path.exists(), path
            seen |= {(o["kind"], o["metadata"]["name"]): o for o in (objects(path.read_text()) if path.is_file() else ())}
    check(seen)
    assert seen.keys() == rendered(gateway={"enabled": True}).keys() - {("Job", "lorad-found")}


# ----------------------------------------------------------------------------------------- what runs in it


def pods_start_as_they_stand():
    """The founding job, two pods' init containers and their servers, with paths and addresses of this machine."""
    if not postgres.PROGRAMS:
        print("skipped: pods_start_as_they_stand: PostgreSQL is not on this machine (Debian: postgresql)")
        return
    database = postgres.Postgres()
    whole = rendered(database=f"postgres://lorad@127.0.0.1:{database.port}/fleet")
    with tempfile.TemporaryDirectory(prefix="lorad-pods-") as folder:
        servers = [Server(directory=f"{folder}/{node}/data") for node in (0, 1)]
        try:
            key = subprocess.run([BUILD / "lorad", "key", "--new"], check=True, capture_output=True, text=True).stdout.strip()
            secret = pathlib.Path(folder, "admin.key")
            secret.write_text(key + "\n")
            secret.chmod(0o600)
            said = started(whole["Job", "lorad-found"], whole, folder, "found")
            assert re.search("^admin key +as in ", said, re.M) and "lk_" not in said, said
            for node, server in enumerate(servers):
                for again in range(2):  # a pod that starts again finds its directory
                    started(whole["StatefulSet", "lorad"], whole, folder, str(node), LORAD_SERVER_NODE=str(node))
                serve(server, whole, folder, node)
            for server in servers:
                page = until(lambda: (n := server.call("GET", "/admin/v1/nodes", key=key, port=server.admin_port)).status == 200 and n).json
                assert [(n["node"], n["state"]) for n in page["data"]] == [(0, "alive"), (1, "alive")], page
                text = scrape(server)
                for name in ("vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:lora_requests_info",
                             whole["HorizontalPodAutoscaler", "lorad"]["spec"]["metrics"][0]["pods"]["metric"]["name"]):
                    assert re.search(f"^{name}[ {{]", text, re.M), name
        finally:
            for server in servers:
                server.stop()
            database.close()


def environment(c, whole, folder, pod, **more):
    """What the container's command finds, but for the paths."""
    env = dict(whole["ConfigMap", "lorad"]["data"], PATH=f"{BUILD}:{os.environ['PATH']}", LORAD_MODEL_PATH=str(DEMO / "base"), **more)
    env.pop("LORAD_STORAGE_PASSWORD_FILE")  # this PostgreSQL asks for none
    return env, [a.replace("/var/lib/lorad", f"{folder}/{pod}").replace("/etc/lorad/", f"{folder}/") for a in c.get("command", ()) or ["lorad", *c["args"]]]


def started(o, whole, folder, pod, **more):
    env, command = environment(containers(o)[0], whole, folder, pod, **more)
    (pathlib.Path(folder) / pod).mkdir(exist_ok=True)
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done
    return done.stdout


def serve(server, whole, folder, node):
    """As the pod does: the options of the ConfigMap, and its own number, stand in the environment."""
    server.plain = free_port()
    env, command = environment(containers(whole["StatefulSet", "lorad"])[1], whole, folder, str(node), LORAD_SERVER_NODE=str(node),
                               LORAD_SERVER_LISTEN=f"127.0.0.1:{server.port}", LORAD_ADMIN_LISTEN=f"127.0.0.1:{server.admin_port}",
                               LORAD_METRICS_LISTEN=f"127.0.0.1:{server.metrics_port}", LORAD_DATA_MIN_FREE="1MiB")
    env.update(LORAD_SERVER_PLAIN_LISTEN=f"127.0.0.1:{server.plain}", LORAD_SERVER_PLAIN_NETWORKS="127.0.0.1",
               LORAD_METRICS_INFERENCE_NETWORKS="127.0.0.1")
    server.log = open(server.log_path, "wb")
    server.process = subprocess.Popen(command, env=env, stdout=server.log, stderr=server.log)
    server.wait_ready()


def scrape(server):
    with urllib.request.urlopen(f"http://127.0.0.1:{server.plain}/metrics") as answer:
        return answer.read().decode()


run([the_chart_is_sound, what_values_ask_for, faults_are_found, what_kustomize_takes_is_current, pods_start_as_they_stand])
