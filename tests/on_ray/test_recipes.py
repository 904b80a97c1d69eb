"""The job factories of the guide for SLURM and Kubernetes, as far as one machine can check them."""

from __future__ import annotations

import re
import subprocess
from typing import Any

import pytest
import yaml
from ray.dashboard.modules.job import job_supervisor
from ray.scripts.scripts import cli

import pages

GUIDE = "docs/guides/machines.md"


def block(kind: str, holds: str) -> str:
    (found,) = (b.text for b in pages.blocks(GUIDE) if b.kind == kind and holds in b.text)
    return found


def words(script: str, command: str) -> list[list[str]]:
    """The words of each call of a command in a script, without what stands before it."""
    lines = script.replace("\\\n", " ").splitlines()
    calls = (line.partition(command)[2].split() for line in lines if command in line)
    return [[word for word in call if word != "&"] for call in calls]


def options(*command: str) -> set[str]:
    """The options of a command of Ray."""
    found: Any = cli
    for name in command:
        found = found.get_command(None, name)
    return {option for parameter in found.params for option in parameter.opts}


SCRIPT = block("bash", "#SBATCH")


def test_bash_reads_the_slurm_script() -> None:
    done = subprocess.run(["bash", "-n"], input=SCRIPT, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert SCRIPT.startswith("#!/bin/bash\n#SBATCH "), "sbatch reads its options at the beginning"


@pytest.mark.parametrize("name", ["bash", ""])
def test_ray_has_the_options_of_the_job_factory(name: str) -> None:
    command = ("start",) if name == "bash" else ("job", "submit")
    jobs = (b.text for b in pages.blocks(GUIDE) if b.kind == "" and "ray job submit" in b.text)
    text = SCRIPT if name == "bash" else "".join(jobs)
    calls = words(text, " ".join(["ray", *command]))
    assert calls
    for call in calls:
        own = call[: call.index("--")] if "--" in call else call
        used = {word.partition("=")[0] for word in own if word.startswith("--")}
        assert used <= options(*command), used


def test_the_head_of_the_script_listens_where_the_others_join() -> None:
    head, worker = words(SCRIPT, "ray start")
    assert "--head" in head and "--head" not in worker
    port = next(word.partition("=")[2] for word in head if word.startswith("--port="))
    assert f"export RAY_ADDRESS=$head:{port}" in SCRIPT
    assert '--address="$RAY_ADDRESS"' in worker
    assert "export RAY_AUTH_MODE=token" in SCRIPT


def test_ray_reads_the_seconds_that_a_stopped_job_has_left() -> None:
    source = job_supervisor.__file__
    with open(source, encoding="utf-8") as file:
        assert '"RAY_JOB_STOP_WAIT_TIME_S"' in file.read()
    assert "RAY_JOB_STOP_WAIT_TIME_S=60" in pages.text_of(GUIDE)


#: What Kubernetes and KubeRay's API reference know of the fields that the job factory uses: name ->
#: a type, fields of its own, or a list of one kind. Whatever is not here is an error.
CONTAINER = {
    "name": str,
    "image": str,
    "env": [{"name": str, "value": str}],
    "volumeMounts": [{"name": str, "mountPath": str}],
    "resources": {"limits": {str: str}},
}
POD = {
    "spec": {
        "containers": [CONTAINER],
        "volumes": [{"name": str, "persistentVolumeClaim": {"claimName": str}}],
    }
}
RAY_JOB = {
    "apiVersion": str,
    "kind": str,
    "metadata": {"name": str},
    "spec": {
        "entrypoint": str,
        "shutdownAfterJobFinishes": bool,
        "rayClusterSpec": {
            "rayVersion": str,
            "authOptions": {"mode": str},
            "headGroupSpec": {"rayStartParams": {str: str}, "template": POD},
            "workerGroupSpecs": [
                {
                    "groupName": str,
                    "replicas": int,
                    "minReplicas": int,
                    "maxReplicas": int,
                    "rayStartParams": {str: str},
                    "template": POD,
                }
            ],
        },
    },
}


def wrong(value: Any, schema: Any, where: str) -> list[str]:
    """What of a value its schema does not know, a line each."""
    if isinstance(schema, type):
        return [] if type(value) is schema else [f"{where}: {value!r} is no {schema.__name__}"]
    if isinstance(schema, list):
        if not isinstance(value, list):
            return [f"{where}: {value!r} is no list"]
        return [
            line for at, e in enumerate(value) for line in wrong(e, schema[0], f"{where}[{at}]")
        ]
    if not isinstance(value, dict):
        return [f"{where}: {value!r} has no fields"]
    lines = []
    for name, each in value.items():
        known = schema.get(name, schema.get(type(name)))
        unknown = [f"{where}.{name}: there is no such field"]
        lines += unknown if known is None else wrong(each, known, f"{where}.{name}")
    return lines


JOB = yaml.safe_load(block("yaml", "RayJob"))


def test_the_job_of_kuberay_has_the_fields_of_its_schema() -> None:
    assert wrong(JOB, RAY_JOB, "job") == []
    assert (JOB["apiVersion"], JOB["kind"]) == ("ray.io/v1", "RayJob")
    cluster = JOB["spec"]["rayClusterSpec"]
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    for group in groups:
        assert {f"--{name}" for name in group["rayStartParams"]} <= options("start")
        spec = group["template"]["spec"]
        (container,) = spec["containers"]
        mounted = {mount["name"] for mount in container.get("volumeMounts", ())}
        assert mounted == {volume["name"] for volume in spec.get("volumes", ())}
    images = {group["template"]["spec"]["containers"][0]["image"] for group in groups}
    assert len(images) == 1, "the same versions everywhere"


def test_the_job_of_kuberay_asks_for_what_a_search_asks_for() -> None:
    """A token, which a search refuses to do without; a folder that lasts; a GPU for each worker."""
    cluster = JOB["spec"]["rayClusterSpec"]
    assert cluster["authOptions"]["mode"] == "token"
    version = tuple(map(int, cluster["rayVersion"].split(".")))
    assert version >= (2, 52)
    head = cluster["headGroupSpec"]["template"]["spec"]["containers"][0]
    folder = head["volumeMounts"][0]["mountPath"]
    entrypoint = JOB["spec"]["entrypoint"]
    assert entrypoint.startswith(f"env --chdir={folder} paceline search ")
    assert not set("&;|`") & set(entrypoint), "the pod that submits the job would run the rest"
    (workers,) = cluster["workerGroupSpecs"]
    assert workers["minReplicas"] <= workers["replicas"] <= workers["maxReplicas"]
    limits = workers["template"]["spec"]["containers"][0]["resources"]["limits"]
    assert limits["nvidia.com/gpu"] == "1"
    assert re.fullmatch(r"[1-9]\d*", limits["cpu"])


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("spec", "entryPoint"), "x", "job.spec.entryPoint: there is no such field"),
        (("spec", "shutdownAfterJobFinishes"), "true", "'true' is no bool"),
        (("spec", "rayClusterSpec", "workerGroupSpecs"), {}, "is no list"),
    ],
)
def test_a_wrong_field_would_be_seen(path: tuple[str, ...], value: Any, said: str) -> None:
    job = yaml.safe_load(block("yaml", "RayJob"))
    inside = job
    for name in path[:-1]:
        inside = inside[name]
    inside[path[-1]] = value
    assert said in " ".join(wrong(job, RAY_JOB, "job"))
