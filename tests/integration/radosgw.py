"""Ceph's object gateway, with all that is below it, on loopback and in memory: a real S3 store, for nightly tests."""

import shutil
import subprocess
import time
import urllib.error
import urllib.request
import uuid
from pathlib import Path

from ports import ReservedPort
from s3 import BUCKET

ACCESS, SECRET = "AKGATEWAY", "secret-of-AKGATEWAY"
PROGRAMS = ("ceph", "ceph-authtool", "ceph-mon", "ceph-osd", "monmaptool", "radosgw", "radosgw-admin")

# All that they may do, for all of them: there are no others.
KEYS = {
    "mon.": {"mon": "allow *"},
    "client.admin": {"mon": "allow *", "osd": "allow *"},
    "osd.0": {"mon": "allow profile osd", "osd": "allow *"},
    "client.gateway": {"mon": "allow rwx", "osd": "allow rwx"},
}

CONFIG = """
[global]
fsid = {fsid}
mon_host = v2:127.0.0.1:{mon}/0
keyring = {directory}/keyring
auth_allow_insecure_global_id_reclaim = false
public_network = 127.0.0.0/8
cluster_network = 127.0.0.0/8
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_num = 8
osd_pool_default_pgp_num = 8
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_allow_pool_size_one = true
mon_max_pg_per_osd = 1000
mon_data = {directory}/mon
osd_data = {directory}/osd
osd_objectstore = memstore
memstore_device_bytes = 4294967296
osd_heartbeat_grace = 120
run_dir = {directory}
admin_socket = {directory}/$name.asok
log_file = {directory}/$name.log
rgw_frontends = beast endpoint=127.0.0.1:{gateway}
rgw_data = {directory}/rgw
rgw_enable_usage_log = false
"""


class RadosGateway:
    """As S3 of s3.py, but for keys that rotate."""

    def __init__(self, directory: Path) -> None:
        for name in ("mon", "osd", "rgw"):
            (directory / name).mkdir(parents=True)
        self.directory = directory
        self.config = directory / "ceph.conf"
        self.credentials = directory / "credentials"
        self.credentials.touch(mode=0o600)
        self.credentials.write_text(f"[default]\naws_access_key_id = {ACCESS}\naws_secret_access_key = {SECRET}\n")
        self._ports = [ReservedPort(), ReservedPort()]
        mon, gateway = (port.number for port in self._ports)
        self.address = f"127.0.0.1:{gateway}"
        self._daemons: "list[subprocess.Popen]" = []
        fsid = str(uuid.uuid4())
        self.config.write_text(CONFIG.format(fsid=fsid, mon=mon, directory=directory, gateway=gateway))
        try:
            self._start_cluster(fsid, mon)
            self._start_gateway()
        except BaseException:
            self.stop()
            raise

    @staticmethod
    def missing() -> "list[str]":
        return [program for program in PROGRAMS if shutil.which(program) is None]

    def url(self, prefix: str, address: "str | None" = None) -> str:
        return f"s3://{BUCKET}/{prefix}?endpoint=http://{address or self.address}&credentials={self.credentials}"

    def stop(self) -> None:
        for daemon in reversed(self._daemons):
            daemon.kill()
            daemon.wait()

    def _start_cluster(self, fsid: str, mon: int) -> None:
        monmap = self.directory / "monmap"
        keys = self.directory / "keyring"
        for number, (name, caps) in enumerate(KEYS.items()):
            create = ("--create-keyring",) if number == 0 else ()
            granted = [word for cap in caps.items() for word in ("--cap", *cap)]
            self._run("ceph-authtool", *create, keys, "--gen-key", "-n", name, *granted)
        # Messages go by version 2 alone: one port.
        self._run("monmaptool", "--create", "--fsid", fsid, "--addv", "a", f"[v2:127.0.0.1:{mon}/0]", monmap)
        self._run("ceph-mon", "-i", "a", "--mkfs", "--monmap", monmap, "--keyring", keys)
        self._daemon("ceph-mon", "-i", "a", "-f")
        osd = str(uuid.uuid4())
        self._run("ceph", "osd", "new", osd, timeout_s=120)
        self._run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd)
        self._daemon("ceph-osd", "-i", "0", "-f")

    def _start_gateway(self) -> None:
        self._daemon("radosgw", "-n", "client.gateway", "-f")
        deadline = time.monotonic() + 90
        while not self._answers():
            assert time.monotonic() < deadline, f"radosgw does not answer; its log is in {self.directory}"
            time.sleep(0.5)
        user = ("--uid", "lockstep", "--display-name", "lockstep", "--access-key", ACCESS, "--secret-key", SECRET)
        self._run("radosgw-admin", "-n", "client.gateway", "user", "create", *user, timeout_s=120)
        from botocore.session import Session  # of the tests' packages

        client = Session().create_client(
            "s3",
            endpoint_url=f"http://{self.address}",
            region_name="us-east-1",
            aws_access_key_id=ACCESS,
            aws_secret_access_key=SECRET,
        )
        client.create_bucket(Bucket=BUCKET)

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"http://{self.address}/", timeout=2)
        except (urllib.error.HTTPError, urllib.error.URLError, OSError) as error:
            return isinstance(error, urllib.error.HTTPError)
        return True

    def _command(self, program: str, *arguments: object) -> "list[str]":
        config = [] if program in ("monmaptool", "ceph-authtool") else ["-c", str(self.config)]
        return [program, *config, *map(str, arguments)]

    def _run(self, program: str, *arguments: object, timeout_s: float = 60) -> None:
        command = self._command(program, *arguments)
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"

    def _daemon(self, program: str, *arguments: object) -> None:
        log = open(self.directory / f"{program}.out", "w")  # the process keeps it
        with log:
            self._daemons.append(
                subprocess.Popen(self._command(program, *arguments), stdout=log, stderr=subprocess.STDOUT)
            )
