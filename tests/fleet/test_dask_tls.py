"""The engine dask over TLS: a real scheduler and worker with certificates of the lab's own authority."""

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from dask_rig import Lab, lab
from nullbench import build_network

from harness.errors import ConfigurationError, EngineError
from harness.fleet.cluster.access import TlsFiles
from harness.fleet.cluster.dask_engine import DaskEngine
from harness.measure.journal.journal import Journal
from harness.measure.policy import RepeatPolicy
from harness.measure.request import ProfileRequest


def _files(folder: Path) -> TlsFiles:
    """A new authority and a certificate of it for a host of the lab."""
    folder.mkdir()
    names = {role: x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, role)]) for role in ("authority", "host")}
    keys = {role: ec.generate_private_key(ec.SECP256R1()) for role in names}
    now = datetime.now(UTC)
    for role, name in names.items():
        is_authority = role == "authority"
        builder = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(names["authority"])
            .public_key(keys[role].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(keys[role].public_key()), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(keys["authority"].public_key()), critical=False
            )
        )
        if is_authority:
            usage = dict.fromkeys(
                (
                    "digital_signature",
                    "content_commitment",
                    "key_encipherment",
                    "data_encipherment",
                    "key_agreement",
                    "encipher_only",
                    "decipher_only",
                ),
                False,
            )
            builder = builder.add_extension(x509.KeyUsage(**usage, key_cert_sign=True, crl_sign=True), critical=True)
        signed = builder.sign(keys["authority"], hashes.SHA256())
        (folder / f"{role}.pem").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    key = keys["host"].private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (folder / "key.pem").write_bytes(key)
    return TlsFiles(folder / "authority.pem", folder / "host.pem", folder / "key.pem")


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A scheduler and a worker that speak TLS only."""
    root = tmp_path_factory.mktemp("lab")
    with lab(root, _files(root / "tls")) as rig:
        (rig.root / "main").mkdir()
        build_network(rig.root / "chain.onnx")
        rig.start_scheduler()
        rig.start_workers(["one"])
        yield rig


def _job(rig: Lab, name: str) -> ProfileRequest:
    return ProfileRequest("left", (str(rig.root / "chain.onnx"),), name=name, policy=RepeatPolicy(runs=4))


def test_a_job_runs_over_tls(rig: Lab) -> None:
    """With certificates of one authority a job is measured, and its samples reach the controller's journal intact."""
    engine = DaskEngine(rig.scheduler, rig.workspace("main"), tls=rig.tls)
    (outcome,) = engine.run([_job(rig, "secret")], threading.Event())
    assert outcome.failure is None and outcome.result is not None
    with Journal(rig.workspace("main").journal) as journal:
        assert journal.samples(outcome.result.campaign)
        assert journal.check(outcome.result.campaign) == "intact"
    assert rig.series("main", "secret")


@pytest.mark.parametrize("by", ["another authority", "no encryption"])
def test_who_has_no_certificate_of_the_lab_gets_no_job_in(rig: Lab, tmp_path: Path, by: str) -> None:
    """A controller with a certificate of another authority, or without TLS, is refused and nothing is measured."""
    foreign = by == "another authority"
    address = rig.scheduler if foreign else rig.scheduler.replace("tls://", "tcp://")
    tls = _files(tmp_path / "foreign") if foreign else None
    engine = DaskEngine(address, rig.workspace("main"), tls=tls, connect_s=3.0)
    with pytest.raises(EngineError, match="No scheduler answers") as refused:
        list(engine.run([_job(rig, "stranger")], threading.Event()))
    assert not foreign or "certificate" in refused.value.why.lower()
    assert not rig.series("left", "stranger") and not rig.series("one", "stranger")


def test_tls_address_without_files_is_a_setting_to_mend(rig: Lab) -> None:
    """A tls:// scheduler without TLS files is an error before anything is sent."""
    with pytest.raises(ConfigurationError, match="requires TLS"):
        list(DaskEngine(rig.scheduler, rig.workspace("main")).run([_job(rig, "bare")], threading.Event()))
