"""Runs the binary from the unpacked image (see `check`). The argument is its root directory."""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time

LIMIT_SECONDS = 60
USER = "65532:65532"
DOMAIN = "seawall.test"
SRV_NAME = f"_mongodb._tcp.db.{DOMAIN}"
HOST_NAME = f"node.{DOMAIN}"
# As in a pod of Kubernetes, names with fewer than five dots are first looked up in these domains.
POD_DNS = f"search databases.svc.{DOMAIN} svc.{DOMAIN} {DOMAIN}\noptions ndots:5\n"
# The file in which Debian has the certificate authorities. The image lacks this file, so Seawall
# uses the authorities of Mozilla.
ROOTS = "etc/ssl/certs/ca-certificates.crt"
# The default command and the default configuration of the image.
CONFIGURATION = "etc/seawall/seawall.toml"
COMMAND = ["serve", "--config", f"/{CONFIGURATION}"]


def find_mongod():
    """The path of a mongod."""
    script = pathlib.Path(__file__).parent / "find-mongod"
    return subprocess.run([script], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def free_ports(count):
    """Different ports on loopback that are free now."""
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


@contextlib.contextmanager
def running(command, **options):
    """Runs a process, and ends it by its id."""
    process = subprocess.Popen(command, **options)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


def eventually(condition, what):
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        if time.monotonic() > end:
            sys.exit(f"not within {LIMIT_SECONDS} s: {what}")
        time.sleep(0.1)


def accepts(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def name_bytes(name):
    labels = (bytes([len(label)]) + label.encode() for label in name.split("."))
    return b"".join(labels) + b"\0"


def dns_reply(query, port):
    """The reply of a DNS server that knows one SRV record and one address (RFC 1035, RFC 2782)."""
    end = query.index(b"\0", 12) + 1
    question = query[12 : end + 4]
    kind = struct.unpack("!H", query[end : end + 2])[0]
    asked = query[12:end].lower()
    data = None
    if kind == 33 and asked == name_bytes(SRV_NAME):
        data = struct.pack("!HHH", 0, 0, port) + name_bytes(HOST_NAME)
    elif kind == 1 and asked == name_bytes(HOST_NAME):
        data = socket.inet_aton("127.0.0.1")
    is_known = asked in (name_bytes(SRV_NAME), name_bytes(HOST_NAME))
    flags = 0x8580 if is_known else 0x8583
    reply = query[:2] + struct.pack("!HHHHH", flags, 1, int(data is not None), 0, 0) + question
    if data is not None:
        reply += b"\xc0\x0c" + struct.pack("!HHIH", kind, 1, 60, len(data)) + data
    return reply


def serve_dns(server, port):
    while True:
        try:
            query, client = server.recvfrom(512)
        except OSError:
            return
        with contextlib.suppress(ValueError, struct.error):
            server.sendto(dns_reply(query, port), client)


def certificate(folder):
    """Writes an authority, and a certificate for HOST_NAME with its key. Returns their paths."""
    authority, pem = folder / "ca.pem", folder / "server.pem"

    def openssl(*arguments):
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder)

    new = ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1"]
    openssl(*new, "-subj", "/CN=authority", "-keyout", "ca.key", "-out", "ca.pem")
    request = ["req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={HOST_NAME}"]
    openssl(*request, "-keyout", "server.key", "-out", "server.csr")
    (folder / "names").write_text(f"subjectAltName=DNS:{HOST_NAME}\n")
    sign = ["x509", "-req", "-days", "1", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"]
    openssl(*sign, "-in", "server.csr", "-extfile", "names", "-out", "server.crt")
    pem.write_text((folder / "server.crt").read_text() + (folder / "server.key").read_text())
    return authority, pem


def check_key_file(stack):
    """Runs the script of the compose file that writes the key of the replica set. mongod refuses a
    key file that is too long, not base64, or readable for other users."""
    folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    script = pathlib.Path(__file__).parent / "compose" / "keyfile.sh"
    text = script.read_text().replace("mongodb:mongodb", f"{os.getuid()}:{os.getgid()}")
    text = text.replace("=/keyfile/keyfile", f"={folder}/keyfile")
    keys = []
    for _ in range(2):
        subprocess.run(["bash", "-c", text], check=True)
        keys.append((folder / "keyfile").read_bytes())
    if keys[0] != keys[1]:
        sys.exit("keyfile.sh replaced the key at its second run; it must keep the key")
    (port,) = free_ports(1)
    (folder / "data").mkdir()
    mongod = [find_mongod(), "--dbpath", f"{folder}/data", "--port", str(port)]
    mongod += ["--bind_ip", "127.0.0.1", "--replSet", "rs0", "--keyFile", f"{folder}/keyfile"]
    with running(mongod, stdout=subprocess.DEVNULL):
        eventually(lambda: accepts(port), "mongod accepts the key file")
    print("keyfile.sh: mongod accepts its key")


def check_authorities(stack, etc, run, expect):
    """Without authorities of the system, Seawall trusts only those of Mozilla, so it refuses the
    server of this check, whose authority is not among them."""
    folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
    authority, pem = certificate(folder)
    (port,) = free_ports(1)
    (folder / "data").mkdir()
    mongod = [find_mongod(), "--dbpath", f"{folder}/data", "--port", str(port)]
    mongod += ["--bind_ip", "127.0.0.1", "--tlsMode", "requireTLS", "--tlsCAFile", str(authority)]
    mongod += ["--tlsCertificateKeyFile", str(pem), "--tlsAllowConnectionsWithoutCertificates"]
    with running(mongod, stdout=subprocess.DEVNULL):
        eventually(lambda: accepts(port), "mongod listens with TLS")
        uri = f"mongodb://{HOST_NAME}:{port}/?tls=true"
        refused = run("check", "--connect", "--deployment", uri)
        if refused.returncode != 69:
            sys.exit(f"unknown authority: exit code {refused.returncode}, not 69: {refused.stderr}")
        roots = etc.parent / ROOTS
        roots.parent.mkdir(parents=True)
        shutil.copy(authority, roots)
        expect("check", "--connect", "--deployment", uri)
        roots.unlink()
    print(f"certificate authority of the check: refused, then accepted from /{ROOTS}")


def catches_sigterm(process):
    """True if the process has a handler for SIGTERM."""
    status = pathlib.Path(f"/proc/{process.pid}/status").read_text()
    caught = int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16)
    return caught >> (signal.SIGTERM - 1) & 1 == 1


def check_silent_dns(stack, etc, seawall, run):
    """Without a reply of DNS, Seawall starts, and SIGTERM ends it also while it waits for DNS."""
    silent = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    silent.bind(("127.0.0.98", 53))
    resolv_conf = etc / "resolv.conf"
    before = resolv_conf.read_text()
    resolv_conf.write_text("nameserver 127.0.0.98\n")
    listen, admin = free_ports(2)
    command = [*seawall, "serve", "--deployment", f"mongodb+srv://db.{DOMAIN}/?tls=false"]
    command += ["--listen", f"127.0.0.1:{listen}", "--admin", f"127.0.0.1:{admin}"]
    with running(command, stderr=subprocess.PIPE, text=True) as process:
        eventually(lambda: catches_sigterm(process), "Seawall handles SIGTERM")
        process.send_signal(signal.SIGTERM)
        _, said = process.communicate(timeout=LIMIT_SECONDS)
        if process.returncode != 0 or "serving" in said:
            sys.exit(f"SIGTERM during the wait for DNS: exit code {process.returncode}: {said}")
    with running(command) as process:
        url = f"http://127.0.0.1:{admin}"
        eventually(lambda: run("health", "--admin", url).returncode == 0, "a start without DNS")
        process.send_signal(signal.SIGTERM)
        if process.wait(LIMIT_SECONDS) != 0:
            sys.exit(f"exit code {process.returncode}")
    resolv_conf.write_text(before)
    print("a silent DNS server: Seawall starts, and SIGTERM ends the wait for DNS")


def main(root):
    seawall = [shutil.which("chroot"), f"--userspec={USER}", root, "/seawall"]

    def run(*arguments, **options):
        return subprocess.run(
            [*seawall, *arguments], capture_output=True, text=True, timeout=LIMIT_SECONDS, **options
        )

    def expect(*arguments, **options):
        done = run(*arguments, **options)
        if done.returncode != 0:
            sys.exit(f"{arguments}: exit code {done.returncode}: {done.stderr}")
        return done.stdout

    print(expect("--version").strip())
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(tempfile.TemporaryDirectory())
        port, listen, admin = free_ports(3)
        mongod = [find_mongod(), "--dbpath", data, "--port", str(port), "--bind_ip", "127.0.0.1"]
        stack.enter_context(running(mongod, stdout=subprocess.DEVNULL))
        eventually(lambda: accepts(port), "mongod listens")

        # Without a name server, names are found only in /etc/hosts.
        etc = pathlib.Path(root, "etc")
        (etc / "hosts").write_text("127.0.0.1 localhost in-hosts.seawall.test\n")
        uri = f"mongodb://in-hosts.seawall.test:{port}/"
        expect("check", "--connect", "--deployment", uri)
        print("a name in /etc/hosts: found")
        dns = stack.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
        dns.bind(("127.0.0.99", 53))
        threading.Thread(target=serve_dns, args=(dns, port), daemon=True).start()
        (etc / "resolv.conf").write_text("nameserver 127.0.0.99\n")
        expect("check", "--connect", "--deployment", f"mongodb://{HOST_NAME}:{port}/")
        print("an address record: found")
        srv = "mongodb+srv://db.seawall.test/?tls=false"
        expect("check", "--connect", "--deployment", srv)
        print("an SRV record: found")
        (etc / "resolv.conf").write_text(f"{POD_DNS}nameserver 127.0.0.99\n")
        for name in ("node", HOST_NAME):
            expect("check", "--connect", "--deployment", f"mongodb://{name}:{port}/")
        expect("check", "--connect", "--deployment", srv)
        print("with search domains and ndots:5: a short name, a full name and an SRV record: found")
        check_authorities(stack, etc, run, expect)
        check_silent_dns(stack, etc, seawall, run)
        check_key_file(stack)

        environment = {
            "SEAWALL_ADMIN__ADDRESS": f"127.0.0.1:{admin}",
            "SEAWALL_DEPLOYMENT__URI": srv,
        }
        subprocess.run(["mount", "-o", "remount,ro,bind", root], check=True)

        def serve(variables):
            """Runs the default command, and checks on which port it listens."""
            url = f"http://127.0.0.1:{admin}"
            with running([*seawall, *COMMAND], env=environment | variables) as process:
                eventually(lambda: run("health", "--admin", url).returncode == 0, "Seawall runs")
                expect("wait", "--admin", url)
                expect("health", "--ready", "--admin", url)
                expect("reload", "--admin", url)
                if not accepts(listen):
                    sys.exit("Seawall does not listen on the configured port")
                process.send_signal(signal.SIGTERM)
                if process.wait(LIMIT_SECONDS) != 0:
                    sys.exit(f"exit code {process.returncode}")

        serve({"SEAWALL_LISTEN__ADDRESS": f"127.0.0.1:{listen}"})
        print(f"serve, health, wait, reload and SIGTERM as {USER} with a read-only root: passed")
        mounted = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()), "seawall.toml")
        mounted.write_text(f'[listen]\naddress = "127.0.0.1:{listen}"\n')
        mounted.chmod(0o644)
        path = pathlib.Path(root, CONFIGURATION)
        subprocess.run(["mount", "--bind", mounted, path], check=True)
        serve({})
        print("a mounted configuration: replaces the default one")


main(sys.argv[1])
