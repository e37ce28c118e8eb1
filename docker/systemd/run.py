"""Checks the units under a running systemd (see `run`). The argument is the path of a mongod."""

import concurrent.futures
import contextlib
import os
import pathlib
import signal
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import time

LIMIT_SECONDS = 60
PAGE = pathlib.Path("docs/operations.md")
CONFIGURATION = pathlib.Path("/etc/seawall/seawall.toml")
DROP_IN = pathlib.Path("/etc/systemd/system/seawall.service.d/check.conf")
SERVICE = "seawall.service"
CLIENTS = ("127.0.0.1", 27018)
SERVER = ("127.0.0.1", 27017)
# Number of TLS handshakes. THREADS handshakes run at the same time. With this number of handshakes,
# some must wait, and the waiting ones run on the threads with a positive nice value.
HANDSHAKES = 600
THREADS = 60
SCHED_IDLE = 5

COMPLETE = """
[listen]
address = "127.0.0.1:27018"

[listen.tls]
certificate_file = "/run/credentials/seawall.service/certificate"
key_file = "/run/credentials/seawall.service/key"

[deployment]
uri_file = "/run/credentials/seawall.service/uri"

[history]
directory = "/var/lib/seawall"

[slow_log]
threshold_ms = 0
file = "/var/log/seawall/slow.jsonl"
"""


def fail(text):
    sys.exit(f"FAILED: {text}")


def command(*words, expected=0):
    """Runs a command, and returns its output. `expected` is the exit code; None: any code but 0."""
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_SECONDS)
    is_expected = done.returncode != 0 if expected is None else done.returncode == expected
    if not is_expected:
        journal = subprocess.run(
            ["journalctl", "--no-pager", "--lines=40"], capture_output=True, text=True
        )
        print(journal.stdout)
        fail(f"{' '.join(words)}: exit code {done.returncode}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def eventually(condition, what):
    end = time.monotonic() + LIMIT_SECONDS
    while not condition():
        if time.monotonic() > end:
            print(command("journalctl", "--no-pager", "--lines=40"))
            fail(f"not within {LIMIT_SECONDS} s: {what}")
        time.sleep(0.1)


def property_of(name):
    return command("systemctl", "show", SERVICE, f"--property={name}", "--value").strip()


def accepts(address):
    with socket.socket() as probe:
        return probe.connect_ex(address) == 0


def ping(stream):
    """Sends the command `ping` in an OP_MSG, and returns the reply's bytes."""
    fields = b"\x10ping\0" + struct.pack("<i", 1) + b"\x02$db\0" + struct.pack("<i", 6) + b"admin\0"
    document = struct.pack("<i", len(fields) + 5) + fields + b"\0"
    body = struct.pack("<i", 0) + b"\0" + document
    stream.sendall(struct.pack("<iiii", 16 + len(body), 1, 0, 2013) + body)
    reply = b""
    while len(reply) < 4 or len(reply) < struct.unpack("<i", reply[:4])[0]:
        part = stream.recv(4096)
        if not part:
            fail(f"the connection was closed after {len(reply)} bytes of a reply")
        reply += part
    return reply


def expect_ping(stream):
    ok = b"\x01ok\0" + struct.pack("<d", 1.0)
    if ok not in ping(stream):
        fail("ping did not return ok: 1")


def block_of(heading):
    """The commands of the first block `sh` after a text in the runbook."""
    text = PAGE.read_text()
    block = text[text.index(heading) :].split("\n```sh\n")[1].split("\n```")[0]
    return [line for line in block.splitlines() if line]


def follow_runbook():
    """Runs the commands of the runbook as they are written. The binary has already been built."""
    lines = block_of("## Install") + block_of("**With systemd.**")
    run = [line for line in lines if line != "cargo build --release"]
    for line in run:
        command("bash", "-c", line)
        print(f"$ {line}")
    if property_of("ActiveState") != "active":
        fail(f"ActiveState is {property_of('ActiveState')}")
    if len(run) != len(lines) - 1 or not any("enable --now seawall.service" in line for line in run):
        fail(f"the runbook has other commands than expected: {lines}")


def check_isolation():
    pid = property_of("MainPID")
    status = pathlib.Path(f"/proc/{pid}/status").read_text()
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    user = facts["Uid"].split()[0]
    if user == "0" or int(facts["CapEff"], 16) != 0 or facts["Seccomp"].strip() != "2":
        fail(f"user {user}, capabilities {facts['CapEff']}, seccomp {facts['Seccomp']}")
    with socket.create_connection(CLIENTS, LIMIT_SECONDS) as client:
        expect_ping(client)
    print(f"serves as user {user}, without capabilities, with a filter of system calls")


def check_reload():
    pid = property_of("MainPID")
    valid = CONFIGURATION.read_text()
    CONFIGURATION.write_text(f"{valid}\n[log]\nlevel = \"debug\"\n")
    command("systemctl", "reload", "seawall")
    if "debug" not in command("seawall", "config"):
        fail("the reload did not change log.level")
    CONFIGURATION.write_text("[pool]\nmax_pool_size = 0\n[listen]\naddres = 1\n")
    command("systemctl", "reload", "seawall", expected=None)
    journal = command("journalctl", "--no-pager", "--unit", SERVICE)
    if "addres" not in journal or "max_pool_size" not in journal:
        fail(f"the journal does not name both problems of the configuration: {journal}")
    if (property_of("ActiveState"), property_of("MainPID")) != ("active", pid):
        fail("a reload with a broken configuration ended the service")
    CONFIGURATION.write_text(valid)
    command("systemctl", "reload", "seawall")
    print("systemctl reload: applies a change, and refuses a broken file while the service runs")


def write_credentials():
    """Writes files that only root can read, and a drop-in that passes them to the service."""
    etc = CONFIGURATION.parent
    names = ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]
    files = ["-keyout", f"{etc}/key.pem", "-out", f"{etc}/certificate.pem"]
    command("openssl", "req", "-x509", *key, *names, *files)
    (etc / "uri").write_text("mongodb://127.0.0.1:27017/")
    DROP_IN.parent.mkdir(exist_ok=True)
    lines = ["[Service]"]
    for name, file in (("uri", "uri"), ("certificate", "certificate.pem"), ("key", "key.pem")):
        (etc / file).chmod(0o600)
        lines.append(f"LoadCredential={name}:{etc / file}")
    DROP_IN.write_text("\n".join(lines) + "\n")
    CONFIGURATION.write_text(COMPLETE)
    command("systemctl", "daemon-reload")


def tls_ping(_):
    context = ssl.create_default_context(cafile=str(CONFIGURATION.parent / "certificate.pem"))
    with socket.create_connection(CLIENTS, LIMIT_SECONDS) as plain:
        with context.wrap_socket(plain, server_hostname="localhost") as stream:
            expect_ping(stream)
    return 1


def low_priority_threads():
    """The numbers of threads with the policy SCHED_IDLE, and with a positive nice value."""
    idle = nice = 0
    for task in pathlib.Path(f"/proc/{property_of('MainPID')}/task").iterdir():
        # The fields after the process name, which is in brackets and may contain spaces (proc(5)).
        fields = (task / "stat").read_text().rpartition(") ")[2].split()
        idle += int(fields[38]) == SCHED_IDLE
        nice += int(fields[16]) > 0
    return idle, nice


def check_tls():
    write_credentials()
    command("systemctl", "restart", SERVICE)
    command("seawall", "wait")
    pid = property_of("MainPID")
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        done = sum(pool.map(tls_ping, range(HANDSHAKES)))
    if (property_of("MainPID"), property_of("NRestarts"), done) != (pid, "0", HANDSHAKES):
        fail(f"{done} handshakes, {property_of('NRestarts')} restarts")
    idle, nice = low_priority_threads()
    if idle == 0:
        fail("the service could not lower the priority of the threads of handshakes")
    print(
        f"{done} TLS handshakes with credentials of systemd, no restart; threads: {idle} with"
        f" SCHED_IDLE, {nice} with a positive nice value"
    )
    slow_log = pathlib.Path("/var/log/seawall/slow.jsonl")
    eventually(lambda: slow_log.exists() and slow_log.stat().st_size > 0, "slow log")
    history = pathlib.Path("/var/lib/seawall")
    eventually(lambda: any(history.iterdir()), "history")
    print("writes the slow log and the history to its own directories")


def check_restarts():
    # More failures than the five after which systemd gives up by default.
    for restarts in range(1, 7):
        eventually(lambda: property_of("MainPID") != "0", "the service runs")
        os.kill(int(property_of("MainPID")), signal.SIGKILL)
        eventually(lambda: property_of("NRestarts") == str(restarts), "restart after a kill")
    command("seawall", "wait")
    # WatchdogSec is 30 in the unit. With this value, the check would take half a minute longer.
    DROP_IN.write_text(DROP_IN.read_text() + "WatchdogSec=3\n")
    command("systemctl", "daemon-reload")
    command("systemctl", "restart", SERVICE)
    command("seawall", "wait")
    os.kill(int(property_of("MainPID")), signal.SIGSTOP)
    eventually(lambda: property_of("NRestarts") == "1", "restart by the watchdog")
    if "watchdog" not in command("journalctl", "--no-pager", "--unit", SERVICE).lower():
        fail("the journal does not name the watchdog")
    command("seawall", "wait")
    tls_ping(0)
    check_wrong_configuration()
    print("restarted after SIGKILL, and by the watchdog after its threads were stopped")


def check_wrong_configuration():
    """Checks that exit code 64 ends the service, and that it starts with a valid file again."""
    CONFIGURATION.write_text("[listen]\naddres = 1\n")
    command("systemctl", "restart", SERVICE, expected=None)
    state = property_of("ActiveState"), property_of("ExecMainStatus"), property_of("NRestarts")
    if state != ("failed", "64", "0"):
        fail(f"state, exit code and restarts with a wrong configuration: {state}")
    CONFIGURATION.write_text(COMPLETE)
    command("systemctl", "start", SERVICE)
    command("seawall", "wait")


def check_sockets():
    command("systemctl", "disable", "--now", SERVICE)
    result = property_of("Result"), property_of("ExecMainStatus")
    if result != ("success", "0"):
        fail(f"systemctl stop: result and exit code are {result}")
    if accepts(CLIENTS):
        fail("the port is open although the service has stopped")
    command("systemctl", "enable", "--now", "seawall.socket")
    tls_ping(0)
    if property_of("ActiveState") != "active":
        fail("the first connection did not start the service")
    # The kernel keeps connections that arrive during the restart, and the new process serves them.
    command("systemctl", "restart", "--no-block", SERVICE)
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        sum(pool.map(tls_ping, range(THREADS)))
    eventually(lambda: property_of("ActiveState") == "active", "restart with the socket")
    tls_ping(0)
    command("systemctl", "stop", "seawall.socket", SERVICE)
    print("stops with exit code 0; with the socket, the first connection starts the service")


def main(mongod):
    print(command("systemctl", "--version").splitlines()[0])
    command("ip", "link", "set", "lo", "up")
    with contextlib.ExitStack() as stack:
        data = stack.enter_context(tempfile.TemporaryDirectory())
        server = [mongod, "--dbpath", data, "--bind_ip", "127.0.0.1", "--quiet"]
        process = subprocess.Popen(server, stdout=subprocess.DEVNULL)
        stack.callback(process.wait)
        stack.callback(process.kill)
        eventually(lambda: accepts(SERVER), "mongod listens")
        follow_runbook()
        check_isolation()
        check_reload()
        check_tls()
        check_restarts()
        check_sockets()
    print("the units passed all checks")


main(sys.argv[1])
