from __future__ import annotations

import argparse
import ast
import importlib.util
import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

from gevit.bench import chart, measure, roofline, runner, table
from gevit.bench.cases import BACKENDS, GPU_BACKENDS, Case, family, full_suite, quick_suite
from gevit.bench.costs import Attention, attention_layers, reference_bytes
from gevit.bench.report import Figures, Machine, Report, Result
from gevit.cli import bench, main
from gevit.cli.arguments import PICTURES
from gevit.layers import GroupAttention, LiftingAttention
from gevit.models import GroupTransformer, build_model

TINY = Case("r4_sa", "rotmnist", 3, "ge", 22, 1, "infer", "native")
MACHINE = Machine("a processor", 1, "AVX2", "2.6.0", "0.1.0", "2030-01-01T00:00:00+00:00")


def measured(case: Case, seconds: float, peak_mib: float, order: int = 4) -> Result:
    figures = Figures(seconds, seconds, 3, case.batch / seconds, peak_mib, seconds / 4, 50.0, 0.25)
    return Result(case, "measured", None, order, figures)


def skipped(case: Case, order: int = 4) -> Result:
    return Result(case, "skipped", "needs about 40 GB", order, None)


def report_of(*results: Result) -> Report:
    return Report(MACHINE, 200.0, False, results)


def parse(*flags: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_arguments(parser)
    return parser.parse_args(flags)


def made_up(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request without any measurement."""
    if request["case"] is None:
        return {"torch": "2.6.0", "capability": "AVX2", "sgemm_gflops": 200.0}
    return {"status": "skipped", "reason": "needs about 40 GB", "group_order": 4, "figures": None}


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure without a process for each case, and without the seconds that the machine's own rate takes."""
    monkeypatch.setattr(measure, "_sgemm_gflops", lambda size: 200.0)
    monkeypatch.setattr(torch, "set_num_threads", lambda threads: None)
    monkeypatch.setattr(runner, "ask", measure.answer)


# ---- measuring ----


def test_a_case_is_measured_in_a_process_of_its_own() -> None:
    case = replace(TINY, mode="train")
    found = runner.ask({"case": asdict(case), "threads": 1, "seconds": 0})
    assert (found["status"], found["reason"], found["group_order"]) == ("measured", None, 4)
    assert 1 < found["figures"]["peak_mib"] < 2000


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_training_step_is_measured(backend: str) -> None:
    figures = measure.measure_case(replace(TINY, model="z2_sa", backend=backend, mode="train"), seconds=0.0)["figures"]
    assert 0 < figures["attention_seconds"] < figures["seconds"] <= figures["seconds_median"]
    assert figures["repeats"] == 1
    assert figures["images_per_second"] == pytest.approx(1 / figures["seconds"])
    assert figures["attention_gflops"] > 0


def test_the_rate_of_multiplying_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "_timed", lambda step: 0.5 if step() is not None else 0.0)
    assert measure._sgemm_gflops(200) == pytest.approx(2 * 200**3 / 0.5 / 1e9)


@pytest.mark.usefixtures("in_this_process")
def test_run_prints_one_json_object_and_writes_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, picture = tmp_path / "new" / "run.json", tmp_path / "run.svg"
    flags = ["--model", "z2_sa", "--size", "22", "--batch", "2", "--mode", "infer", "--neighborhood", "3"]
    flags += ["--backend", "native", "--backend", "reference", "--threads", "1", "--seconds", "0", "--json"]
    assert main(["bench", *flags, "--out", str(out), "--chart", str(picture)]) == 0
    printed = capsys.readouterr().out
    content = json.loads(printed)
    assert out.read_text() == printed
    assert set(content) == {"machine", "sgemm_gflops", "interrupted", "cases", "ratios"}
    assert content["machine"]["threads"] == 1
    assert content["sgemm_gflops"] == 200.0
    native, reference = content["cases"]
    assert (native["backend"], reference["backend"]) == ("native", "reference")
    assert native["sgemm_share"] == pytest.approx(native["attention_gflops"] / content["sgemm_gflops"])
    (ratio,) = content["ratios"]
    assert (ratio["backend"], ratio["against"]) == ("native", "reference")
    assert ratio["speedup"] == pytest.approx(reference["seconds"] / native["seconds"])
    assert ratio["memory_ratio"] == pytest.approx(reference["peak_mib"] / native["peak_mib"])
    assert picture.read_text().startswith("<?xml")


@pytest.mark.parametrize(("columns", "kind"), [(80, "xterm"), (40, "xterm"), (40, "dumb")])
def test_progress_keeps_the_count_in_view(columns: int, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = io.StringIO()
    monkeypatch.setenv("TERM", kind)
    console = Console(file=drawn, width=columns, force_terminal=True)
    monkeypatch.setattr(runner, "Console", lambda **_: console)
    monkeypatch.setattr(runner, "ask", made_up)
    runner.run_cases([replace(TINY, backend="factored"), TINY], threads=1, seconds=0.0)
    lines = [re.sub(r"\x1b\[[^A-Za-z]*[A-Za-z]", "", line).rstrip() for line in re.split(r"[\r\n]", drawn.getvalue())]
    assert any(re.search(r"1/2 .*r4_sa ge", line) for line in lines)
    if kind == "dumb":  # a line each, however long
        assert "\x1b" not in drawn.getvalue()
    else:
        assert max(map(len, lines)) <= columns


def ended(code: int, stderr: str = "") -> Callable[..., subprocess.CompletedProcess[str]]:
    """A process that ended without an answer."""
    return lambda *_, **__: subprocess.CompletedProcess([], code, stdout="", stderr=stderr)


def test_a_case_that_fails_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "run", ended(1, "Traceback ...\nValueError: size must be at least 17\n"))
    result = runner.run_case(TINY, threads=1, seconds=0.0, sgemm_gflops=200.0)
    assert (result.status, result.reason, result.figures) == ("failed", "ValueError: size must be at least 17", None)


def test_a_process_that_is_killed_is_a_failed_case_and_an_error_of_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(subprocess, "run", ended(-signal.SIGKILL))
    result = runner.run_case(TINY, threads=1, seconds=0.0, sgemm_gflops=200.0)
    assert (result.status, result.reason) == ("failed", "killed by SIGKILL (out of memory?)")
    assert main(["bench", "--model", "z2_sa"]) == 2  # the machine cannot even be measured
    assert capsys.readouterr().err.splitlines()[-1] == "gevit bench: error: killed by SIGKILL (out of memory?)"


def test_interrupting_keeps_what_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(request: dict[str, Any]) -> dict[str, Any]:
        if request["case"] and request["case"]["backend"] == "native":
            raise KeyboardInterrupt
        return made_up(request)

    monkeypatch.setattr(runner, "ask", interrupted)
    report = runner.run_cases(list(family(mode=["train"])), threads=1, seconds=0.0)
    assert report.interrupted
    assert [result.case.backend for result in report.results] == ["reference", "factored"]


def test_step_slower_than_the_limit_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(measure, "SLOW_SECONDS", -1.0)
    assert len(measure._repeat(lambda: calls.append(1), 10.0)) == len(calls) == 1


# ---- what is measured ----


def test_arithmetic_of_an_example_counted_by_hand() -> None:
    # 3x3 images and neighbourhoods: 4 corners with 4 neighbours, 4 edges with 6, the centre with 9: 49 pairs.
    # G = 2, C = 5, Cs = 3, Ce = 2, U = 9; content and values 4 * 5 * 49 = 980 each, T K = 8 * 49 = 392.
    attention = Attention(1, 1, 3, 3, 2, 5, 3, 9, own_query=False)
    assert attention.neighbors == 49
    assert attention.forward == 980 + 9 * 2 * 9 * 3 + 9 * 4 * 2 + 392 + 2 * 392 + 980
    assert attention.backward == (980 + 392 + 2 * 392) + 980 + 3 * 980 + 4 * 392
    # T = 4 where each output has its own query
    relative = replace(attention, own_query=True)
    assert attention.forward - relative.forward == 3 * (392 - 196)
    assert attention.backward - relative.backward == 7 * (392 - 196)
    assert replace(attention, batch=2, heads=9).forward == 18 * attention.forward


def test_arithmetic_counts_no_neighbours_outside_the_image() -> None:
    assert Attention(1, 1, 4, 99, 1, 6, 4, 1, own_query=False).neighbors == 16 * 16


def test_suites_have_no_case_twice_and_can_be_built() -> None:
    for cases in (quick_suite(), full_suite()):
        assert len(set(cases)) == len(cases)
    for case in quick_suite():
        measure.build(case)


def test_full_suite_holds_the_sweeps() -> None:
    cases = full_suite()
    for backend in BACKENDS:
        sweep = [case for case in cases if case.backend == backend and case.batch == 2 and case.mode == "train"]
        assert {case.model for case in sweep} >= {"z2_sa", "r4_sa", "r8_sa", "r12_sa", "r16_sa", "d4_sa"}
        assert {case.neighborhood for case in sweep} >= {3, 5, 23}


# ---- memory ----


def test_peak_memory_is_that_of_this_process_alone() -> None:
    code = "from gevit.bench.measure import peak; a = peak(); b = bytearray(2**26); print(a, peak())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    before, after = map(int, done.stdout.split())
    assert 2**26 * 0.9 < after - before < 2**26 * 1.5
    assert measure.resident() <= measure.peak()


def test_reference_holds_one_layer_or_in_training_all() -> None:
    case = replace(TINY, backend="reference")
    layers = attention_layers(measure.build(case), case.size)
    alone = [reference_bytes([layer], case) for layer in layers]
    assert reference_bytes(layers, case) == max(alone)
    assert reference_bytes(layers, replace(case, mode="train")) == sum(alone) + max(alone) / 3
    assert reference_bytes(layers, replace(case, batch=5)) == 5 * max(alone)


def test_reference_is_refused_when_it_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "available", lambda: 2**30)
    large = Case("r16_sa", "rotmnist", 5, "ge", 28, 8, "train", "reference")
    found = measure.measure_case(large, seconds=0.0)
    assert (found["status"], found["group_order"], found["figures"]) == ("skipped", 16, None)
    assert found["reason"].startswith("needs about 1")  # 16^3 x 25 x 1604 pixels x 9 heads x 8 images, a few times


# ---- reporting ----


def test_ratios_are_twin_over_case() -> None:
    relative = replace(TINY, encoding="relative")
    report = report_of(
        measured(replace(TINY, backend="reference"), 10.0, 800.0),
        measured(TINY, 0.5, 100.0),
        measured(relative, 0.25, 50.0),
        measured(replace(TINY, batch=9, backend="factored"), 1.0, 1.0),  # its reference was not measured
    )
    ratios = list(report.ratios())
    assert [(ratio.case, ratio.against) for ratio in ratios] == [(TINY, "reference"), (relative, "ge")]
    assert (ratios[0].speedup, ratios[0].memory_ratio) == (20.0, 8.0)
    assert (ratios[1].speedup, ratios[1].memory_ratio) == (2.0, 2.0)


def test_json_comes_back_as_it_was(tmp_path: Path) -> None:
    globally = replace(TINY, neighborhood=None)
    failed = Result(replace(TINY, backend="factored"), "failed", "killed by SIGKILL", None, None)
    report = report_of(measured(globally, 0.5, 100.0), skipped(replace(TINY, backend="reference")), failed)
    assert Report.from_json(report.to_json()) == report
    report.save(tmp_path / "report.json")
    assert [path.name for path in tmp_path.iterdir()] == ["report.json"]
    assert Report.from_json((tmp_path / "report.json").read_text()) == report


def test_table_fits_a_terminal_and_says_what_was_skipped() -> None:
    report = report_of(
        skipped(replace(TINY, backend="reference", batch=16, size=28)),
        measured(replace(TINY, batch=16, size=28), 12.345, 12345.0),
        measured(replace(TINY, backend="reference"), 123.456, 23456.0),
        measured(TINY, 0.1234, 123.0),
    )
    console = Console(width=80, record=True, file=io.StringIO())
    table.show(replace(report, interrupted=True), console)
    text = console.export_text()
    words = " ".join(text.split())
    assert "skipped: needs about 40 GB" in words
    assert "native 123 ms 8.1 1000.5 123 190.7" in words
    assert "interrupted" in words
    assert "…" not in text


def sweep_report() -> Report:
    results = []
    for order, model in ((1, "z2_sa"), (4, "r4_sa"), (8, "r8_sa")):
        for case in family([model], batch=[2]):
            full = case.backend == "reference" and order == 8
            results.append(skipped(case, order) if full else measured(case, order / 10, 100.0 * order, order))
    return report_of(*results)


@pytest.mark.parametrize("suffix", PICTURES)
def test_chart_of_a_sweep(tmp_path: Path, suffix: str) -> None:
    figure = chart.draw(sweep_report())
    time_axes, memory_axes = figure.axes
    assert time_axes.get_title().startswith("training")
    points = [np.asarray(line.get_xdata()).tolist() for line in memory_axes.lines]
    assert points == [[1, 4], [1, 4, 8], [1, 4, 8]]  # the reference stops where it does not fit
    chart.save(figure, tmp_path / f"chart{suffix}")
    assert (tmp_path / f"chart{suffix}").stat().st_size > 1000


def test_chart_without_a_sweep_has_bars() -> None:
    report = report_of(measured(TINY, 0.5, 100.0), skipped(replace(TINY, backend="reference")))
    axes = chart.draw(report).axes[0]
    assert len(axes.patches) == 1
    assert "reference skipped" in [text.get_text() for text in axes.texts]


def test_performance_page_is_filled_from_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = Path(__file__).parent.parent
    spec = importlib.util.spec_from_file_location("page", root / "benchmarks" / "performance_page.py")
    assert spec is not None
    assert spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    copy = tmp_path / "performance.md"
    copy.write_text((root / "docs" / "performance.md").read_text())
    sweep_report().save(tmp_path / "full.json")
    for name, path in {"RESULTS": tmp_path / "full.json", "PAGE": copy, "IMAGES": tmp_path}.items():
        monkeypatch.setattr(page, name, path)
    page.main()
    once = copy.read_text()
    assert "| `r8_sa` train, batch 2 | skipped: needs about 40 GB | 800 ms | 800 ms |" in once
    assert (tmp_path / "performance_train.png").exists()
    page.main()
    assert copy.read_text() == once


# ---- a GPU, which is not here ----


def test_device_cuda_without_a_gpu_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["bench", "--device", "cuda"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "--device cuda needs a GPU" in line


def test_cases_of_a_gpu_have_its_kernel() -> None:
    for flags in ([], ["--suite", "full"], ["--model", "d4_sa"]):
        backends = {case.backend for case in bench._cases(parse("--device", "cuda", *flags))}
        assert backends == set(GPU_BACKENDS)
    for device, wrong in (("cuda", "native"), ("cpu", "triton")):
        with pytest.raises(ValueError, match=f"backend {wrong} is not for --device {device}; valid: reference, fact"):
            bench._cases(parse("--device", device, "--backend", wrong))


def test_time_on_a_gpu_ends_when_its_work_does(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: happened.append("wait"))
    measure._timed(lambda: happened.append("step"))
    assert happened == ["wait", "step", "wait"]


def test_the_roofline_is_the_slower_of_memory_and_arithmetic() -> None:
    layer = Attention(8, 9, 28, 5, 4, 10, 6, 25, own_query=False)
    for work in (roofline.forward_work(layer), roofline.backward_work(layer)):
        gpu = roofline.Gpu("any", bandwidth=1.0, peak=1.0)
        assert work.seconds(gpu, work.done) == work.done > work.needed > work.bytes
        assert work.seconds(replace(gpu, peak=1e30), work.done) == work.bytes
    # Queries twice, keys, values and the result; the scores of elements written and read.
    pixels = 8 * 9 * 28 * 28
    assert roofline.forward_work(layer).bytes == 4 * pixels * (5 * 4 * 10 + 2 * 4 * 4)
    twice = replace(layer, batch=16)
    assert roofline.backward_work(twice).done == 2 * roofline.backward_work(layer).done


# ---- flags ----


def test_no_flags_are_the_quick_suite() -> None:
    assert bench._cases(parse()) == quick_suite()
    assert bench._cases(parse("--suite", "full")) == full_suite()


def test_flags_of_a_case_are_combined() -> None:
    flags = parse("--model", "r4_sa", "d4_sa", "--neighborhood", "global", "7", "--mode", "train", "--batch", "3")
    cases = bench._cases(flags)
    assert len(cases) == 2 * 2 * 3
    assert {case.neighborhood for case in cases} == {None, 7}
    assert {(case.mode, case.batch, case.size, case.encoding) for case in cases} == {("train", 3, 28, "ge")}


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--model", "r5_sa"], "unknown model 'r5_sa'"),
        (["--preset", "mnist"], "unknown preset 'mnist'"),
        (["--encoding", "gee"], "did you mean 'ge'"),
        (["--neighborhood", "4"], "must be odd"),
        (["--size", "9"], "size must be at least"),
        (["--suite", "quick", "--batch", "2"], "leave out --batch"),
        (["--chart", "chart.gif"], "--chart draws .png, .svg, .pdf"),
    ],
)
def test_flags_without_sense_are_refused(flags: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *flags]) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        ["--batch", "0"],
        ["--threads", "two"],
        ["--seconds", "nan"],
        ["--backend", "cuda"],
        ["--neighborhood", "-3"],
    ],
)
def test_values_without_sense_are_refused(flags: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse(*flags)
    assert flags[0] in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--out", "--chart"])
def test_a_file_that_cannot_be_written_is_refused_before_the_run(
    flag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(runner, "run_cases", lambda *_: pytest.fail("it was run"))
    folder = tmp_path / "folder.svg"
    folder.mkdir()
    assert main(["bench", "--model", "z2_sa", flag, str(folder)]) == 2
    assert "it is a folder; name another file" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["bench", "--model", "z2_sa", flag, str(tmp_path / "file" / "run.svg")]) == 2
    assert str(tmp_path / "file") in capsys.readouterr().err


def test_chart_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'gevit\[figures\]'"):
        bench.run(parse("--chart", "chart.png"))


def test_flags_need_neither_torch_nor_matplotlib() -> None:
    body = ast.parse(Path(bench.__file__).read_text()).body
    imports = [node for node in body if isinstance(node, ast.Import | ast.ImportFrom)]
    modules = {getattr(node, "module", node.names[0].name) for node in imports}
    assert modules == {"__future__", "argparse", "pathlib", "typing", "gevit.cli.arguments"}


@pytest.mark.parametrize(
    ("preset", "size"), [("nano", 28), ("tiny", 45), ("small", 70), ("rotmnist", 29), ("pcam", 50)]
)
def test_the_sides_that_attention_sees_are_those_of_the_maps(preset: str, size: int) -> None:
    model = build_model("z2_sa", preset, in_channels=1)
    assert isinstance(model, GroupTransformer)
    seen: list[int] = []
    for layer in model.modules():
        if isinstance(layer, GroupAttention | LiftingAttention):
            layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].shape[-1]))
    model.eval()(torch.randn(1, 1, size, size))
    assert [side for _, side in attention_layers(model, size)] == seen
