"""A CA and certificates of a test, made by deploy/tls/make-test-ca.sh, and the options that they are given by."""

import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


class Ca:
    """Each certificate is `<directory>/<name>/tls.crt`, for spiffe://test/<name> and, of daemons, this host."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.policy = directory / "policy.toml"

    def issue(self, *names: str, days: int = 30, sans: str = "DNS:localhost,IP:127.0.0.1,URI:spiffe://test/{}") -> None:
        wanted = [f"{name}={sans.format(name)}" for name in names]
        script = ROOT / "deploy/tls/make-test-ca.sh"
        subprocess.run([script, "--days", str(days), self.directory, *wanted], check=True)

    def files(self, name: str) -> "dict[str, object]":
        """The options of lockstepctl; a certificate is made when there is none yet."""
        own = self.directory / name
        if not own.exists():
            self.issue(name)
        return {"tls_cert": own / "tls.crt", "tls_key": own / "tls.key", "tls_ca": own / "ca.crt"}

    def daemon(self, name: str) -> "dict[str, object]":
        return {**self.files(name), "tls_policy": self.policy}

    def allow(self, *grants: "tuple[str, ...]") -> None:
        """(name, role) or (name, role, model): the policy, which takes the place of the one before at once."""
        text = ""
        for name, role, *models in grants:
            text += f'[[allow]]\nname = "spiffe://test/{name}"\nrole = "{role}"\n'
            text += f"models = {models}\n" if models else ""
        fresh = self.policy.with_suffix(".new")
        self.directory.mkdir(parents=True, exist_ok=True)
        fresh.write_text(text)
        fresh.replace(self.policy)


def key_pair(directory, name: str):
    """An Ed25519 key that signs logs and receipts, and its public key: PEM files."""
    private, public = directory / f"{name}.pem", directory / f"{name}.pub"
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
    private.chmod(0o600)
    subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
    return private, public
