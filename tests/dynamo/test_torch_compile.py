"""The backend of ``torch.compile``: graphs that Dynamo captures, run by ONNX Runtime. Needs the extra ``torch``."""

# pyright: reportMissingImports=false

from __future__ import annotations

import gc
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("onnxscript")

from eqsat.backends.consumer import newest_opset  # noqa: E402
from eqsat.dynamo import FallbackWarning, backend, eqsat, program  # noqa: E402
from eqsat.dynamo.captured import Captured, read_captured  # noqa: E402
from eqsat.dynamo.export import export_captured  # noqa: E402
from eqsat.dynamo.program import Settings  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore", "error::eqsat.dynamo.FallbackWarning")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch.manual_seed(0)
    torch.compiler.reset()
    with torch.inference_mode():
        yield


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each program compiled so far is one for all sizes."""
    made: list[bool] = []
    compile_one = backend.compile_captured

    def counted(*arguments: Any, symbolic: bool) -> Any:
        run = compile_one(*arguments, symbolic=symbolic)
        made.append(symbolic)
        return run

    monkeypatch.setattr(backend, "compile_captured", counted)
    return made


@pytest.fixture
def results(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What each optimisation so far came to."""
    made: list[Any] = []
    optimize = program.optimize
    monkeypatch.setattr(
        program, "optimize", lambda *given, **options: made.append(optimize(*given, **options)) or made[-1]
    )
    return made


def _compiled(function: Any, **options: Any) -> Any:
    return torch.compile(function, backend=eqsat, options=options)


def _same(found: Any, expected: Any, atol: float = 1e-5) -> None:
    torch.testing.assert_close(found, expected, atol=atol, rtol=atol, check_stride=False)


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.norm = torch.nn.BatchNorm1d(8)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, x: Any) -> Any:
        return self.dropout(torch.relu(self.norm(self.linear(x))))


def test_a_model_runs_as_torch_compile_finds_the_backend_by_name() -> None:
    model = Layer().eval()
    compiled = torch.compile(model, backend="eqsat")
    x = torch.randn(2, 8)
    _same(compiled(x), model(x))


@pytest.mark.parametrize("flushed", [False, True])
def test_subnormal_numbers_are_zero_in_onnxruntime_and_nowhere_else(flushed: bool) -> None:
    torch.set_flush_denormal(flushed)
    try:
        x = torch.full((4,), 1e-30)
        compiled = _compiled(lambda x: (x * 1e-10).sum() * 1e30)
        assert float(compiled(x)) == 0
        assert (float((x * 1e-10).sum() * 1e30) == 0) == flushed
    finally:
        torch.set_flush_denormal(False)


def test_one_program_serves_all_further_sizes(compilations: list[bool]) -> None:
    model = Layer().eval()
    compiled = _compiled(model)
    for rows in (2, 3, 5, 9):
        x = torch.randn(rows, 8)
        _same(compiled(x), model(x))
    assert compilations == [False, True]


@pytest.mark.parametrize("runtime", ["eager", "inductor"])
def test_programs_run_in_pytorch_itself_where_that_is_asked_for(runtime: str, compilations: list[bool]) -> None:
    from torch._inductor import metrics

    model = Layer().eval()
    compiled = _compiled(model, runtime=runtime)
    metrics.reset()
    for rows in (2, 3, 5):
        x = torch.randn(rows, 8)
        _same(compiled(x), model(x))
    assert compilations == ([False] * 3 if runtime == "inductor" else [False, True])
    assert (metrics.generated_kernel_count > 0) == (runtime == "inductor")


@pytest.mark.parametrize("faster", ["onnxruntime", "inductor"])
def test_the_faster_runtime_takes_graphs_of_fixed_sizes(
    faster: str, compilations: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    measured, tried = backend._seconds, list[str]()

    def seconds(runs: Any, inputs: Any) -> list[float]:
        tried.extend(run._settings.runtime for run in runs)
        assert all(taken > 0 for taken in measured(runs, inputs))
        return [float(name != faster) for name in tried]

    monkeypatch.setattr(backend, "_seconds", seconds)
    monkeypatch.setattr(backend, "SECONDS_OF_TRIAL", 0.0)
    model = Layer().eval()
    compiled = _compiled(model, runtime="fastest")
    for rows in (2, 3):
        x = torch.randn(rows, 8)
        _same(compiled(x), model(x))
    assert tried == ["onnxruntime", "inductor"]
    assert compilations == [False, False, True]


def test_a_runtime_that_cannot_be_had_is_not_the_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **named: Any) -> Any:
        raise RuntimeError("no compiler")

    monkeypatch.setattr("eqsat.dynamo.running.compiled_for", broken)
    model, x = Layer().eval(), torch.randn(2, 8)
    with pytest.warns(UserWarning, match="not tried in inductor: RuntimeError: no compiler"):
        _same(_compiled(model, runtime="fastest")(x), model(x))


@pytest.mark.parametrize("runtime", ["eager", "inductor"])
def test_programs_for_pytorch_need_not_be_of_an_opset_that_older_readers_know(runtime: str) -> None:
    found = Settings.of({"runtime": runtime}).options_on("cpu")
    assert (found["target"], found["opset"]) == ("inductor-cpu", newest_opset())
    assert Settings.of({"runtime": runtime, "opset": 20}).options_on("cpu")["opset"] == 20
    assert "opset" not in Settings.of({}).options_on("cpu")


def test_outputs_are_memory_of_their_own() -> None:
    compiled = _compiled(lambda x: (x + 0, x * 1, x.t().t() * 1), runtime="eager")
    x = torch.ones(2, 3)
    found = compiled(x)
    assert len({x.data_ptr(), *(y.data_ptr() for y in found)}) == 4


def test_what_cannot_be_run_as_a_program_runs_in_inductor_where_that_is_the_runtime() -> None:
    x = torch.randn(2, 2)
    with pytest.warns(FallbackWarning, match=r"runs in Inductor as it is: .*draws random numbers"):
        assert _compiled(lambda x: x + torch.rand(2, 2), runtime="inductor")(x).shape == x.shape


def test_a_program_for_all_sizes_is_verified_on_several() -> None:
    compiled = torch.compile(torch.nn.Softmax(-1).eval(), backend=eqsat, dynamic=True)
    x = torch.randn(4, 8)
    _same(compiled(x), x.softmax(-1))


def test_a_program_for_all_sizes_is_priced_at_those_of_the_first_call(results: list[Any]) -> None:
    compiled = torch.compile(torch.nn.Softmax(-1).eval(), backend=eqsat, dynamic=True)
    compiled(torch.randn(6, 24))
    assert [list(result.report.assumed.values()) for result in results] == [[6, 24]]


def test_one_program_serves_all_lengths_of_keys_that_heads_share(compilations: list[bool]) -> None:
    def function(past: Any, new: Any) -> Any:
        keys = torch.cat([past, new], -2)
        return keys[:, :, None].expand(2, 2, 3, keys.shape[2], 4).reshape(2, 6, keys.shape[2], 4).sin()

    compiled, new = _compiled(function), torch.randn(2, 2, 1, 4)
    for length in (5, 6, 9, 2):
        past = torch.randn(2, 2, length, 4)
        _same(compiled(past, new), function(past, new))
    assert compilations == [False, True]


def test_where_no_program_serves_all_sizes_each_has_its_own(compilations: list[bool]) -> None:
    def halves(x: Any) -> Any:
        return x.reshape(2, -1).sum(0) * 2

    compiled = _compiled(halves)
    sizes = range(4, 4 + 2 * (backend.MOST_SIZES + 3), 2)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for rows in sizes:
            x = torch.randn(rows, 3)
            _same(compiled(x), halves(x))
    fallbacks = [str(w.message) for w in said if w.category is FallbackWarning]
    assert compilations[1:] in ([True], [False] * backend.MOST_SIZES)
    assert len(fallbacks) == (compilations[1:] != [True])  # said once


class Windows(torch.nn.Module):
    """Rows in windows of four, of which there may be one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        batch, rows, width = x.shape
        padded = torch.nn.functional.pad(x, (0, 0, 0, -rows % 4))
        count = padded.shape[1] // 4
        turned = padded.view(batch, count, 4, width).transpose(1, 2).reshape(-1, width)
        back = self.linear(turned).view(batch, 4, count, width).transpose(1, 2)
        return back.reshape(batch, count * 4, width)[:, :rows]


def test_where_the_smallest_sizes_are_special_one_program_serves_all_others(compilations: list[bool]) -> None:
    model = Windows().eval()
    compiled = torch.compile(model, backend=eqsat, dynamic=True)
    for batch, rows in ((3, 12), (2, 17), (3, 30), (4, 9), (2, 5), (2, 13)):
        x = torch.randn(batch, rows, 8)
        _same(compiled(x), model(x))
    assert compilations in ([True, True], [True])  # of one window, where torch has one for several


def test_one_program_serves_all_sizes_that_a_graph_can_have(compilations: list[bool]) -> None:
    """An image that is halved and doubled again, as in a U-Net: of other sizes its halves have no double to be joined with."""
    up = torch.nn.ConvTranspose2d(3, 3, 2, 2).eval()

    def function(x: Any) -> Any:
        return torch.cat([up(torch.nn.functional.avg_pool2d(x, 2)), x], 1).relu()

    compiled = torch.compile(function, backend=eqsat, dynamic=True)
    for rows, columns in ((6, 8), (4, 10), (12, 6), (8, 8)):
        x = torch.randn(2, 3, rows, columns)
        _same(compiled(x), function(x))
    assert compilations == [True]


def test_an_extent_that_the_export_fixes_is_fixed_alone(compilations: list[bool]) -> None:
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True).eval()
    compiled = torch.compile(layer, backend=eqsat, dynamic=True)
    for batch, rows in ((2, 6), (3, 5), (4, 9)):
        x = torch.randn(batch, rows, 16)
        _same(compiled(x), layer(x))
    assert compilations == [True]


@pytest.mark.parametrize("runtime", ["onnxruntime", "eager"])
def test_what_operators_are_spelled_out_for_is_required_of_sizes(runtime: str) -> None:
    """Pools to four places are windows of one size where four divides the extent, and only there."""

    def function(x: Any) -> Any:
        return torch.nn.functional.adaptive_avg_pool1d(x, 4) + 1

    compiled = torch.compile(function, backend=eqsat, dynamic=True, options={"runtime": runtime})
    for columns in (8, 12, 10, 9, 6):
        x = torch.randn(2, 3, columns)
        _same(compiled(x), function(x))


def test_an_extent_that_follows_from_another_is_no_obstacle(compilations: list[bool]) -> None:
    """As the mask of a decoder is longer than its cache."""

    def function(past: Any, new: Any, mask: Any) -> Any:
        keys = torch.cat([past, new], 1)
        return torch.nn.functional.scaled_dot_product_attention(new, keys, keys, mask[:, None] > 0)

    compiled = torch.compile(function, backend=eqsat, dynamic=True)
    for length in (5, 7, 4):
        past, new, mask = torch.randn(2, length, 16), torch.randn(2, 3, 16), torch.ones(2, length + 3)
        _same(compiled(past, new, mask), function(past, new, mask))
    assert compilations == [True]


F = torch.nn.functional


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + torch.arange(x.shape[2], dtype=torch.float32) * 0.5,
        lambda x: torch.triu(x @ x.mT, x.shape[2] // 4) * 2,
        lambda x: F.pad(x, (2, 1), mode="reflect").exp(),
        lambda x: F.pad(x, (2, 1), mode="replicate").exp(),
        lambda x: F.pad(x, (2, 1), mode="circular").exp(),
        lambda x: F.interpolate(x, size=x.shape[2] * 2 + 1, mode="linear") + 1,
        lambda x: F.interpolate(x, size=x.shape[2] + 3, mode="nearest") + 1,
        lambda x: F.interpolate(x[:, None], scale_factor=2.0, mode="bilinear") + 1,
        lambda x: F.interpolate(x[:, None], size=(7, x.shape[2] + 3), mode="bilinear", align_corners=True) + 1,
        lambda x: F.interpolate(x[:, None], size=(7, x.shape[2] + 3), mode="bicubic") + 1,
        lambda x: torch.diagonal(x @ x.mT, dim1=1, dim2=2) * 2,
    ],
)
def test_pytorch_runs_what_is_computed_of_sizes(function: Any, compilations: list[bool]) -> None:
    compiled = torch.compile(function, backend=eqsat, dynamic=True, options={"runtime": "eager"})
    for columns in (6, 9, 4):
        x = torch.randn(2, 5, columns)
        _same(compiled(x), function(x))
    assert compilations == [True]


def test_graph_breaks_leave_several_graphs(compilations: list[bool]) -> None:
    def broken(x: Any) -> Any:
        y = torch.relu(x) + 1
        torch._dynamo.graph_break()
        return torch.sigmoid(y) * 2

    x = torch.randn(2, 3)
    _same(_compiled(broken)(x), broken(x))
    assert compilations == [False, False]


def test_integers_go_in_and_sizes_come_out() -> None:
    def scaled(x: Any, k: int) -> Any:
        y = x * k
        return y, y.shape[0] + 1, k, None

    compiled = _compiled(scaled)
    for rows, k in ((4, 3), (6, 5), (6, 7), (8, 5)):
        x = torch.randn(rows, 2)
        found, expected = compiled(x, k), scaled(x, k)
        _same(found[0], expected[0])
        assert found[1:] == expected[1:]


def test_inputs_that_are_returned_stay_the_same_tensor() -> None:
    def passing(x: Any) -> Any:
        y = x + 1
        return y, x, y

    x = torch.randn(3)
    found = _compiled(passing)(x)
    assert found[1] is x
    assert found[0] is found[2]


def test_outputs_that_are_views_share_their_memory() -> None:
    def viewing(x: Any) -> Any:
        y = x * 2
        return y[:, 0], y, y.shape[0], x.flatten(0, 1), y.view(-1, 2).unsqueeze(0)

    compiled = _compiled(viewing)
    for rows in (2, 3):
        x = torch.randn(rows, 4, 2)
        first, y, count, flat, pairs = compiled(x)
        for found, expected in zip(
            (first, y, flat, pairs), (e for e in viewing(x) if isinstance(e, torch.Tensor)), strict=True
        ):
            _same(found, expected)
        y.zero_()
        x.zero_()
        assert not any(view.any() for view in (first, pairs, flat))
        assert count == rows


@pytest.mark.parametrize(
    "function",
    [
        lambda x: torch.broadcast_tensors(x, x[:1])[1],
        lambda x: torch.tensor_split(x, 2, -1)[1],
        lambda x: torch.meshgrid(x[0], x[1], indexing="ij")[0],
        lambda x: x.as_strided((2, 2), (4, 1), 1),
        lambda x: torch.nn.functional.dropout(x, 0.5, False),
        lambda x: x.type_as(x).float(),
        lambda x: (x + 1).relu_(),
        lambda x: x.add_(1)[0],
        lambda x: torch.nn.functional.relu(x, inplace=True)[1:],
    ],
    ids=["broadcast", "split", "meshgrid", "strided", "dropout", "types", "written", "part-of-written", "inplace"],
)
def test_outputs_may_be_views_by_any_function(function: Callable[..., Any], compilations: list[bool]) -> None:
    x, other = torch.randn(2, 4), torch.randn(2, 4)
    own = x.clone()
    found, double = _compiled(lambda x, y: (function(x), y * 2))(own, other)
    expected, before = function(x), x.clone()
    _same((found, double, own), (expected, other * 2, x))
    found.zero_()
    expected.zero_()
    _same(own, x)
    assert torch.equal(own, before) == torch.equal(x, before)
    assert compilations


def test_what_lies_in_one_place_is_one_tensor(compilations: list[bool]) -> None:
    first, second = _compiled(lambda x: ((y := x * 2), y.add_(1)))(torch.ones(3))
    assert first is second
    _same(first, torch.full((3,), 3.0))
    assert compilations


@pytest.mark.parametrize("runtime", ["onnxruntime", "inductor", "eager"])
def test_outputs_lie_as_they_do_in_pytorch(runtime: str, compilations: list[bool]) -> None:
    def function(x: Any, y: Any) -> Any:
        z = (x * 2).transpose(1, 2).relu()
        torch._dynamo.graph_break()
        turned = torch.view_as_complex(torch.stack((x, x + 1), -1)).permute(2, 0, 1) * 2
        return z.transpose(1, 2).view(-1) + 1, y * 2, (y + 1)[:, :, 1:], turned

    compiled = _compiled(function, runtime=runtime)
    for rows in (2, 3):
        x, y = torch.randn(rows, 3, 8), torch.randn(rows, 3, 4, 5).contiguous(memory_format=torch.channels_last)
        found, expected = compiled(x, y), function(x, y)
        _same(found, expected)
        for i in (0, 1, 3):
            assert found[i].stride() == expected[i].stride()
    assert len(compilations) == 4


def test_outputs_that_are_parts_of_a_value_share_its_memory(compilations: list[bool]) -> None:
    def parts(x: Any) -> Any:
        y = x * 2
        a, b = y.chunk(2, 1)
        return a, x.shape[0], b, y.flatten(1)[0], y.mT[:, 0]

    compiled = _compiled(parts)
    for rows in (2, 3):
        x = torch.randn(rows, 4, 2)
        found = compiled(x)
        _same([found[0], *found[2:]], [parts(x)[0], *parts(x)[2:]])
        assert (len(found), found[1]) == (5, rows)
        found[3].zero_()
        assert not found[0][0].any()
        assert not found[2][0].any()
        assert found[0][1].any()
    assert compilations == [False, True]


def test_outputs_may_be_views_of_what_is_named_by_a_keyword(compilations: list[bool]) -> None:
    def function(x: Any) -> Any:
        y = x * 2
        return torch.unsqueeze(input=y, dim=0) + 1, torch.flatten(input=y + 1)

    x = torch.randn(2, 3)
    _same(_compiled(function)(x), function(x))
    assert compilations


def test_weights_that_dynamo_puts_into_the_graph_are_constants_too(compilations: list[bool]) -> None:
    from torch._inductor import config

    with torch.inference_mode(False), torch.no_grad(), config.patch(freezing=True):
        model = Layer().eval()
        compiled = _compiled(model)
        for rows in (2, 3):
            x = torch.randn(rows, 8)
            _same(compiled(x), model(x))
        assert compilations == [False, True]
        model.linear.weight.mul_(2)
        with pytest.warns(UserWarning, match="weights of a graph have changed"):
            found = compiled(x)
        _same(found, model(x))


def test_memory_that_is_not_in_rows_is_read_by_pytorch() -> None:
    function = lambda x: (x + 1).as_strided((2, 2), (1, 2))  # noqa: E731
    for x in (torch.randn(3, 4), torch.randn(4, 3).t()):
        with (
            warnings.catch_warnings() if x.is_contiguous() else pytest.warns(FallbackWarning, match="as_strided of add")
        ):
            found = _compiled(function)(x)
        _same(found, function(x))


def test_arguments_need_not_lie_in_rows() -> None:
    x = torch.randn(4, 3).t()
    _same(_compiled(lambda x: x @ x.T)(x), x @ x.T)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int32, torch.bool, torch.uint8])
def test_element_types_come_out_as_they_are(dtype: Any) -> None:
    x = (torch.randn(4, 3) * 3).to(dtype)
    _same(_compiled(lambda x: torch.cat([x, x], 1))(x), torch.cat([x, x], 1))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.view(-1), "computes no tensor but views of its inputs"),
        (lambda x: ((y := x.t() * 2), y[0]), "shares memory with"),
        (lambda x: x + torch.rand(2, 2), "rand draws random numbers"),
        (lambda x: torch.linalg.eigvals(x).abs(), "cannot export"),
    ],
    ids=["view", "not-in-rows", "random", "no-operator"],
)
def test_what_cannot_be_run_elsewhere_falls_back_and_says_why(function: Callable[..., Any], reason: str) -> None:
    x = torch.randn(2, 2)
    torch.manual_seed(1)
    with pytest.warns(FallbackWarning, match=reason):
        found = _compiled(function)(x.clone())
    torch.manual_seed(1)
    _same(found, function(x.clone()))


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x[x > 0], "its output getitem has an extent that depends on values"),
        (lambda x: x.masked_select(x > 0).sum(), "masked_select"),  # a graph that cannot be cut, either
    ],
)
def test_what_has_extents_that_depend_on_values_falls_back_and_says_so(function: Any, reason: str) -> None:
    x = torch.randn(7)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True), pytest.warns(FallbackWarning, match=reason):
        found = _compiled(function)(x)
    _same(found, function(x))


class Cache(torch.nn.Module):
    """Keys of a cache, written along its third axis and read; ``own``: a buffer of the module, and no argument."""

    def __init__(self, *, own: bool) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        if own:
            self.register_buffer("keys", torch.zeros(2, 3, 8, 4))

    def forward(self, x: Any, at: Any, keys: Any = None) -> Any:
        keys = self.keys if keys is None else keys
        keys.index_copy_(2, at, self.linear(x))
        return keys.sum(2) * 2


@pytest.mark.parametrize("runtime", ["onnxruntime", "inductor", "eager"])
@pytest.mark.parametrize("own", [False, True])
def test_what_a_graph_writes_to_its_inputs_is_there_afterwards(runtime: str, own: bool) -> None:
    model, expected = Cache(own=own).eval(), torch.zeros(2, 3, 8, 4)
    keys = model.keys if own else torch.zeros(2, 3, 8, 4)
    place, compiled = keys.data_ptr(), _compiled(model, runtime=runtime)
    for step in range(4):
        x, at = torch.randn(2, 3, 1, 4), torch.tensor([step])
        version = None if keys.is_inference() else keys._version
        found = compiled(x, at) if own else compiled(x, at, keys)
        expected[:, :, step] = model.linear(x)[:, :, 0]
        _same(keys, expected)
        _same(found, expected.sum(2) * 2)
        assert keys.data_ptr() == place
        assert version is None or keys._version > version  # as PyTorch would have it


def test_a_graph_that_reads_floats_may_write_to_its_inputs(compilations: list[bool]) -> None:
    class Stored(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.epsilon = 1e-5

        def forward(self, x: Any, cache: Any) -> Any:
            cache.index_copy_(1, torch.tensor([1]), x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.epsilon))
            return cache.sum(1)

    model = Stored().eval()
    compiled = torch.compile(model, backend=eqsat, dynamic=True)
    for batch in (3, 4):
        x, cache = torch.randn(batch, 1, 8), torch.randn(batch, 5, 8)
        own = cache.clone()
        _same((compiled(x, own), own), (model(x, cache), cache))
    assert compilations == [True]


def test_a_buffer_that_changes_alone_is_an_input_from_then_on(compilations: list[bool]) -> None:
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 4)
            self.register_buffer("count", torch.zeros(()))

        def forward(self, x: Any) -> Any:
            return self.linear(x) + self.count

    with torch.inference_mode(mode=False), torch.no_grad():
        model = Counting().eval()
        compiled, x = _compiled(model), torch.randn(2, 4)
        for _ in range(2 * backend.MOST_CHANGES):
            _same(compiled(x), model(x))
            model.count += 1
        assert len(compilations) == 2
        model.load_state_dict(Counting().state_dict())  # others are weights still
        with pytest.warns(UserWarning, match="weights of a graph have changed"):
            _same(compiled(x), model(x))


class Counting:
    """Places of a cache that counts them itself, as those of sliding windows do."""

    def __init__(self) -> None:
        self.count = 3

    def __call__(self, x: Any) -> tuple[Any, int]:
        places = torch.arange(self.count, self.count + x.shape[1])
        self.count += x.shape[1]
        return (x * places[:, None]).softmax(-1), self.count


def test_one_program_serves_all_values_of_a_count(compilations: list[bool]) -> None:
    cache, other = Counting(), Counting()
    compiled = _compiled(cache.__call__)
    for _ in range(backend.MOST_SIZES + 3):
        x = torch.randn(2, 1, 4)
        with warnings.catch_warnings():
            warnings.simplefilter("error", FallbackWarning)
            found = compiled(x)
        expected = other(x)
        _same(found[0], expected[0])
        assert found[1] == expected[1]
    assert compilations == [False, True]


def test_an_integer_that_no_tensor_depends_on_takes_no_program_of_its_own(compilations: list[bool]) -> None:
    compiled, x = _compiled(lambda x, count: (x * 2, count + 1)), torch.randn(2, 4)
    for count in range(backend.MOST_SIZES + 4):
        found, after = compiled(x, count)
        _same(found, x * 2)
        assert after == count + 1
    assert len(compilations) <= 3  # zero and one are numbers of their own for Dynamo


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Llama", "Gemma2"])
def test_generating_with_a_static_cache(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 99,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    }
    config = getattr(transformers, f"{name}Config")(**sizes, num_key_value_heads=2, head_dim=16)
    with torch.inference_mode(mode=False):
        model = transformers.AutoModelForCausalLM.from_config(config).eval()
    tokens = torch.randint(5, 99, (1, 6))
    how = {
        "attention_mask": torch.ones_like(tokens),
        "pad_token_id": 0,
        "do_sample": False,
        "cache_implementation": "static",
    }
    how |= {"min_new_tokens": 12, "max_new_tokens": 12, "disable_compile": True}
    expected = model.generate(tokens, **how)
    model.forward = _compiled(model.forward)
    assert torch.equal(model.generate(tokens, **how), expected)


def _assigned(x: Any, at: Any, values: Any) -> Any:
    x[:, at] = values
    return x * 2


def _twice(x: Any, at: Any, values: Any) -> Any:
    before = x.clone()
    x.index_copy_(1, at, values)
    x.add_(1)
    return before, x[:, :1]


def _returned(x: Any, at: Any, values: Any) -> Any:
    return x.index_copy_(1, at, values).add_(1), x * 2


@pytest.mark.parametrize("runtime", ["onnxruntime", "inductor", "eager"])
@pytest.mark.parametrize("function", [_assigned, _twice, _returned])
def test_writing_in_other_ways_than_to_a_cache(function: Callable[..., Any], runtime: str) -> None:
    x, at, values = torch.randn(3, 5, 4), torch.tensor([4, 1]), torch.randn(3, 2, 4)
    compiled, own = _compiled(function, runtime=runtime), x.clone()
    for _ in range(2):
        expected = function(x, at, values)
        found = compiled(own, at, values)
        _same(own, x)
        _same(found, expected)
    columns = x.permute(2, 1, 0).contiguous().permute(2, 1, 0)  # does not lie in rows
    own = columns.clone(memory_format=torch.preserve_format)
    assert not own.is_contiguous()
    _same(compiled(own, at, values), function(columns, at, values))
    _same(own, columns)


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32])
def test_views_beside_what_is_written_are_taken_without_writing_again(dtype: Any, compilations: list[bool]) -> None:
    def function(x: Any, y: Any) -> Any:
        x[:, 1:] += 1
        x.zero_()
        return y[0]

    x, y = torch.ones(2, 3, dtype=dtype), torch.randn(2, 3)
    _same(_compiled(function)(x, y), y[0])
    assert not x.any()
    assert compilations


def test_writing_to_memory_of_another_input_falls_back() -> None:
    def function(x: Any, y: Any) -> Any:
        x.add_(1)
        return y * 2

    compiled, x = _compiled(function), torch.zeros(4)
    _same(compiled(x, torch.ones(4)), torch.full((4,), 2.0))
    with pytest.warns(FallbackWarning, match="shares memory with another"):
        found = compiled(x, x[:4])
    _same(found, torch.full((4,), 4.0))


def test_types_are_converted_where_autocast_does(compilations: list[bool]) -> None:
    model, x = (
        torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8), torch.nn.Softmax(-1)).eval(),
        torch.randn(2, 8),
    )
    for dtype in (torch.float16, torch.bfloat16):
        with torch.autocast("cpu", dtype):
            found, expected = _compiled(model, runtime="eager")(x), model(x)
        assert found.dtype is expected.dtype
        _same(found, expected, atol=1e-2)
        torch.compiler.reset()
    assert len(compilations) == 2


def test_a_graph_may_convert_types_where_its_own_autocast_has_converted_them(compilations: list[bool]) -> None:
    linear, x = torch.nn.Linear(8, 8).eval(), torch.randn(2, 8)

    def function(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            y = linear(x)
        return y.float() + linear(x)

    _same(_compiled(function, runtime="eager")(x), function(x), atol=2e-2)
    assert compilations == [False]


@pytest.mark.parametrize("runtime", ["eager", "inductor"])
def test_types_stay_where_a_graph_turns_autocast_off(runtime: str, compilations: list[bool]) -> None:
    linear, x = torch.nn.Linear(8, 8).eval(), torch.randn(2, 8)

    def function(x: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            y = linear(x)
        return y.relu(), x @ x.t()

    with torch.autocast("cpu", torch.bfloat16):
        found, expected = _compiled(function, runtime=runtime)(x), function(x)
    _same(found[0], expected[0])
    _same(found[1], expected[1], atol=2e-2)
    assert compilations == [False]


def test_norms_have_wider_weights_where_a_graph_s_own_autocast_has_converted_the_input(
    compilations: list[bool],
) -> None:
    model, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8)).eval(), torch.randn(2, 8)

    def function(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    _same(_compiled(function, runtime="eager")(x), function(x), atol=5e-2)
    assert compilations == [False]


def test_convolutions_are_of_bfloat16_where_autocast_makes_them_so(compilations: list[bool]) -> None:
    model, x = Picture().eval(), torch.randn(2, 3, 8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        found, expected = _compiled(model)(x), model(x)
    assert found.dtype is expected.dtype
    _same(found, expected, atol=5e-2)
    assert compilations == [False]


def test_convolutions_of_doubles_run_in_inductor(compilations: list[bool]) -> None:
    with torch.inference_mode(False):  # else weights are no constants
        model = Picture().eval().double()
    x = torch.randn(2, 3, 8, 8, dtype=torch.float64)
    _same(_compiled(model)(x), model(x), atol=1e-12)
    assert compilations == [False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_what_onnxruntime_has_no_kernels_for_runs_in_pytorch_optimised(dtype: Any, compilations: list[bool]) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.GELU(), torch.nn.Linear(8, 8)).eval().to(dtype)
    compiled = _compiled(model)
    for rows in (2, 3):
        x = torch.randn(rows, 8, dtype=dtype)
        _same(compiled(x), model(x), atol=2e-2 if dtype is torch.bfloat16 else 1e-12)
    assert compilations == [False, True]  # by Inductor, and operator by operator where it would be for one size


def test_integers_that_onnxruntime_has_no_kernels_for_run_in_pytorch_optimised(compilations: list[bool]) -> None:
    def function(x: Any) -> Any:
        return torch.relu(2 * x) + x

    compiled = _compiled(function)
    for rows in (2, 3):
        x = torch.randint(-9, 9, (rows, 8))
        _same(compiled(x), function(x))
    assert compilations == [False, True]
    torch.compiler.reset()
    with pytest.warns(FallbackWarning, match="ONNX Runtime has no kernels on the CPU for Relu of int64"):
        _compiled(function, runtime="onnxruntime")(x)


def test_products_of_integers_that_are_scaled_stay_integers(compilations: list[bool]) -> None:
    x = torch.arange(4).reshape(2, 2)
    found = _compiled(lambda x: torch.addmm(x, x, x, alpha=2, beta=3), verify=False)(x)
    _same(found, torch.addmm(x, x, x, alpha=2, beta=3))
    assert found.dtype is torch.int64
    assert compilations


def test_a_runtime_that_is_asked_for_and_has_no_kernels_is_named() -> None:
    x = torch.randn(2, 8, dtype=torch.float64)
    with pytest.warns(FallbackWarning, match=r"ONNX Runtime has no kernels on the CPU for .* of double"):
        _same(_compiled(torch.nn.functional.gelu, runtime="onnxruntime")(x), torch.nn.functional.gelu(x))


class Rotating(torch.nn.Module):
    """Pairs of numbers, turned as complex ones."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("turns", torch.polar(torch.ones(16, 4), torch.rand(16, 4)))

    def forward(self, x: Any, turns: Any = None) -> Any:
        turns = self.turns[: x.shape[1]] if turns is None else turns
        numbers = torch.view_as_complex(self.linear(x).unflatten(-1, (-1, 2))) * turns[None, ..., :].unsqueeze(-3)[0]
        return torch.view_as_real(numbers).flatten(-2), numbers * 2


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("runtime", ["onnxruntime", "inductor"])
def test_complex_numbers_come_in_and_go_out(given: bool, runtime: str, compilations: list[bool]) -> None:
    model = Rotating().eval()
    compiled = _compiled(model, runtime=runtime)
    for length in (4, 6):
        x = torch.randn(2, length, 8)
        turns = (torch.polar(torch.ones(length, 4), torch.rand(length, 4)).conj(),) if given else ()
        _same(compiled(x, *turns), model(x, *turns))
    assert len(compilations) == 2


def test_floats_come_in_and_vary(compilations: list[bool]) -> None:
    def scaled(x: Any, factor: float) -> Any:
        return x * factor

    compiled, x = _compiled(scaled), torch.randn(3, 4)
    for factor in (0.5, 1.5, 2.5, 3.5):
        _same(compiled(x, factor), x * factor)
    assert len(compilations) == 2


class Scaled(torch.nn.Module):
    """A norm as transformers write it, whose number beside zero is a float of the module."""

    def __init__(self) -> None:
        super().__init__()
        self.beside_zero = 1e-6
        self.weight = torch.nn.Parameter(torch.rand(8))

    def forward(self, x: Any) -> Any:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.beside_zero))


def test_floats_that_go_out_have_the_digits_of_python(compilations: list[bool]) -> None:
    def function(x: Any, scale: float) -> Any:
        return (x * scale).softmax(-1), scale * 2

    compiled, x = _compiled(function), torch.randn(2, 3)
    for scale in (0.5, 0.7, 1.3):
        found, expected = compiled(x, scale), function(x, scale)
        _same(found[0], expected[0])
        assert found[1] == expected[1]
    assert len(compilations) == 2


def test_floats_of_a_module_are_constants_until_one_changes(
    compilations: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``dynamic=True`` Dynamo hands them in, and a norm is one operator only with its number known."""
    from eqsat.dynamo import program

    made: list[int] = []
    optimize = program.optimize

    def counted(*arguments: Any, **options: Any) -> Any:
        result = optimize(*arguments, **options)
        made.append(len(result.program.graph.nodes))
        return result

    monkeypatch.setattr(program, "optimize", counted)
    model = Scaled().eval()
    compiled = torch.compile(model, backend=eqsat, dynamic=True)
    for rows, number in ((2, 1e-6), (3, 1e-6), (3, 0.5), (3, 0.25), (4, 1e-6)):
        x, model.beside_zero = torch.randn(rows, 8), number
        with torch.inference_mode():
            _same(compiled(x), model(x))
    assert len(compilations) == 2
    assert made[0] == 1 < made[1]


def test_floats_elsewhere_than_on_the_cpu_have_a_program_each() -> None:
    """They come in on the CPU, whatever the device of the others."""
    read = list[Captured]()

    def reads(module: Any, examples: Any) -> Any:
        read.append(read_captured(module, examples, 0))
        return module.forward

    torch.compile(lambda x, factor: x * factor, backend=reads, dynamic=True)(torch.ones(3, device="meta"), 0.5)
    (found,) = read
    assert found.device == "meta"
    assert not found.floats
    assert len(found.tensors) == len(found.fixed) == 1


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_floats_of_a_module_on_a_gpu(compilations: list[bool]) -> None:
    model = Scaled().eval().cuda()
    compiled = torch.compile(model, backend=eqsat, dynamic=True)
    for rows, number in ((2, 1e-6), (3, 1e-6), (3, 0.5)):
        x, model.beside_zero = torch.randn(rows, 8, device="cuda"), number
        with torch.inference_mode():
            _same(compiled(x), model(x))
    assert len(compilations) == 3


def test_floats_that_a_function_takes_no_tensor_for_have_a_program_each(compilations: list[bool]) -> None:
    function = torch.nn.functional.leaky_relu
    compiled, x = _compiled(function), torch.randn(3, 4)
    for slope in (0.1, 0.2, 0.3, 0.2, 0.3):
        _same(compiled(x, slope), function(x, slope))
    assert len(compilations) == 3


def test_floats_that_dynamo_guards_are_constants(compilations: list[bool]) -> None:
    model = torch.nn.LayerNorm(8).eval()
    compiled = torch.compile(model, backend=eqsat, dynamic=True)
    for rows in (2, 3):
        x = torch.randn(rows, 8)
        _same(compiled(x), model(x))
    assert compilations == [True]


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("masks", [(), ("mask",), ("src_key_padding_mask",), ("mask", "src_key_padding_mask")])
def test_layers_that_torch_has_one_function_for_are_spelled_out(
    norm_first: bool, masks: tuple[str, ...], compilations: list[bool]
) -> None:
    layer = torch.nn.TransformerEncoderLayer(
        16, 4, 32, batch_first=True, norm_first=norm_first, activation="gelu"
    ).eval()
    x = torch.randn(2, 5, 16)
    known = {
        "mask": torch.ones(5, 5, dtype=torch.bool).triu(1),
        "src_key_padding_mask": torch.arange(5) >= torch.tensor([[5], [3]]),
    }
    given = {("src_mask" if name == "mask" else name): known[name] for name in masks}
    _same(_compiled(layer)(x, **given), layer(x, **given))
    assert compilations


@pytest.mark.parametrize("need_weights", [False, True])
def test_attention_that_torch_has_one_function_for_is_spelled_out(need_weights: bool, compilations: list[bool]) -> None:
    layer, x = torch.nn.MultiheadAttention(16, 4, batch_first=True).eval(), torch.randn(2, 5, 16)
    given = {"need_weights": need_weights, "key_padding_mask": torch.arange(5) >= torch.tensor([[5], [3]])}
    found, expected = (f(x, x, x, **given) for f in (_compiled(layer), layer))
    _same([y for y in found if y is not None], [y for y in expected if y is not None])
    assert compilations


def test_an_axis_that_is_not_squeezed_is_left_alone(compilations: list[bool]) -> None:
    x = torch.randn(2, 3, 1)
    _same(_compiled(lambda x: x.squeeze(1).squeeze(-1) * 2)(x), x.squeeze(-1) * 2)
    assert compilations


class Cut(torch.nn.Module):
    """What the exporter has no form for, twice, what writes to an input, and what draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        layers = torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 8), torch.nn.LayerNorm(8)
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, x: Any, total: Any) -> Any:
        y = torch.i0(self.layers(x).tanh() * 0.5)
        total.add_(y.sum())
        a, b = self.layers(y * 2).chunk(2, -1)
        z = self.layers(torch.cat([torch.i0(a.sigmoid()), b], -1))
        return z + torch.rand_like(z), y[1:], total * 2


@pytest.mark.parametrize("ends", [[3, 3, 7, 10], [0, 4, 4, 8], [0, 0, 0, 0]])
def test_products_of_groups_of_rows_are_exported(ends: list[int], compilations: list[bool]) -> None:
    """As experts of transformers do that tokens are sorted by; rows behind the last group are zero."""
    pytest.importorskip("transformers.integrations.moe")

    class Experts(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = torch.nn.Parameter(torch.randn(4, 16, 8))

        def forward(self, x: Any, ends: Any) -> Any:
            return torch.ops.transformers.grouped_mm_fallback(x, self.weights.transpose(1, 2), ends) + 1

    with torch.inference_mode(False):
        model = Experts().eval()
    compiled = _compiled(model)
    for rows in (10, 12):
        given = torch.randn(rows, 8), torch.tensor(ends, dtype=torch.int32)
        _same(compiled(*given), model(*given))
    assert compilations == [False, True]


def test_a_graph_is_cut_at_what_has_to_run_in_pytorch(compilations: list[bool]) -> None:
    model = Cut().eval()
    compiled = _compiled(model)
    for rows in (3, 4):
        x, totals = torch.randn(rows, 8), (torch.ones(()), torch.ones(()))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            torch.manual_seed(1)
            found = compiled(x, totals[0])
        torch.manual_seed(1)
        _same(found, model(x, totals[1]), atol=1e-4)
        torch.testing.assert_close(*totals)
        assert any(
            "2 run in PyTorch as they are, 3 pieces between them in programs: i0" in str(w.message) for w in said
        )
        assert any("1 run in PyTorch as they are" in str(w.message) and "random" in str(w.message) for w in said)
    assert len(compilations) == 6


def test_a_graph_is_cut_at_what_onnx_does_not_take_the_type_of(compilations: list[bool]) -> None:
    def function(x: Any) -> Any:
        y = torch.tanh(torch.exp(x.float()) * 2 + x)
        return torch.where(torch.isnan(x), y, torch.sigmoid(y * y) - torch.exp(y))

    x = torch.arange(6).reshape(2, 3)
    with pytest.warns(FallbackWarning, match="1 run in PyTorch as they are, 2 pieces .* IsNaN .* is of type int64"):
        _same(_compiled(function)(x), function(x))
    assert compilations


@pytest.mark.parametrize("dynamic", [None, True])
def test_kernels_that_fail_at_the_sizes_of_a_call_fall_back(dynamic: bool | None) -> None:
    def function(x: Any) -> Any:
        return torch.nn.functional.pad(x, (-4, 5), mode="replicate") * 2

    x = torch.randn(1, 2, 4)
    expected = torch.full((1, 2, 5), 2.0) * x[..., -1:]
    compiled = torch.compile(function, backend=eqsat, options={"verify": False}, dynamic=dynamic)
    with pytest.warns(FallbackWarning, match="runs in PyTorch as it is: .*ONNX Runtime"):
        _same(compiled(x), expected)


def test_what_is_taken_out_of_a_tensor_is_behind_the_places_that_it_is_taken_from() -> None:
    def function(x: Any) -> Any:
        y = torch.tanh(torch.exp(x) * 2 + x)
        y = y[torch.randperm(3)]
        return torch.tanh(y + 1) * y

    x = torch.randn(3, 8)
    compiled = _compiled(function)
    with pytest.warns(FallbackWarning, match=r"of a graph of \d+ operators 1 run in PyTorch .*randperm draws random"):
        compiled(x)
    torch.manual_seed(1)
    found = compiled(x)
    torch.manual_seed(1)
    _same(found, function(x))


def test_a_graph_that_is_cut_runs_again_with_other_values(compilations: list[bool]) -> None:
    model = Cut().eval()
    compiled, total = _compiled(model), torch.zeros(())
    x = torch.randn(3, 8)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FallbackWarning)
        compiled(x, total)
    for seed in range(3):
        x, others = torch.randn(3, 8), (torch.ones(()), torch.ones(()))
        torch.manual_seed(seed)
        found = compiled(x, others[0])
        torch.manual_seed(seed)
        _same(found, model(x, others[1]), atol=1e-4)
    assert len(compilations) == 3


def test_a_graph_whose_operators_depend_on_a_state_is_not_cut() -> None:
    def function(x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            y = torch.i0((x @ x).tanh() * 0.5)
            return torch.relu(y @ x) + torch.sigmoid(y) * torch.exp(y)

    x = torch.randn(4, 4)
    with pytest.warns(FallbackWarning, match=r"graph of \d+ operators runs in PyTorch as it is"):
        _same(_compiled(function)(x), function(x))


def test_a_failed_verification_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from eqsat.dynamo import program
    from eqsat.errors import VerificationError

    def fail(*_: Any, **__: Any) -> None:
        raise VerificationError("output 'y': differs")

    monkeypatch.setattr(program, "optimize", fail)
    with pytest.warns(FallbackWarning, match="output 'y': differs"):
        assert _compiled(torch.relu)(torch.ones(2)).tolist() == [1, 1]


def _move_results(monkeypatch: pytest.MonkeyPatch, by: float) -> None:
    """Has programs in ONNX Runtime compute something else."""
    from eqsat.dynamo import program, running

    def moved(*given: Any) -> Any:
        compute = running.in_onnxruntime(*given)
        return lambda inputs: [x + by for x in compute(inputs)]

    monkeypatch.setattr(program, "in_onnxruntime", moved)


def test_what_differs_from_pytorch_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    _move_results(monkeypatch, 0.1)
    with pytest.warns(FallbackWarning, match=r"differs from PyTorch's by 0\.1, of 1"):
        assert _compiled(torch.relu)(torch.ones(2)).tolist() == [1, 1]


def test_integers_that_differ_from_pytorch_fall_back_where_no_rounding_moves_them(
    monkeypatch: pytest.MonkeyPatch, compilations: list[bool]
) -> None:
    _move_results(monkeypatch, 1)
    with pytest.warns(FallbackWarning, match=r"differs from PyTorch's in 2 of 2 elements"):
        assert _compiled(lambda x: x * 3)(torch.tensor([1, 2])).tolist() == [3, 6]
    assert not compilations
    _compiled(lambda x: (x * 3).to(torch.int64))(torch.ones(2))
    assert compilations


@pytest.mark.parametrize("dynamic", [False, True])
def test_each_call_reads_and_returns_tensors_of_its_own(dynamic: bool, compilations: list[bool]) -> None:
    """Wherever they lie: results of earlier calls stay as they are, and what lay at an address before is forgotten."""
    compiled = torch.compile(
        lambda x, y: (x @ y, torch.relu(x)), backend=eqsat, dynamic=dynamic, options={"verify": False}
    )
    found, expected = [], []
    for k in range(12):
        x, y = torch.randn(3, 4), torch.randn(4, 5)
        given = (x, y) if k % 3 else (torch.randn(4, 3).t(), torch.randn(5, 8).t()[::2])  # which do not lie in rows
        found += compiled(*given)
        expected += [given[0] @ given[1], torch.relu(given[0])]
    for a, b in zip(found, expected, strict=True):
        _same(a, b)
    assert compilations == [dynamic] * 2  # a graph of Dynamo's for each layout
    empty = compiled(torch.randn(0, 4), torch.randn(4, 5))
    assert [x.shape for x in empty] == [(0, 5), (0, 4)]


def test_threads_call_one_program(compilations: list[bool]) -> None:
    compiled = _compiled(lambda x: torch.tanh(x @ x).sum(1))
    inputs = [torch.randn(64, 64) for _ in range(8)]
    compiled(inputs[0])

    def call(x: Any) -> list[Any]:
        return [compiled(x) for _ in range(20)]

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(call, inputs))
    for x, results in zip(inputs, found, strict=True):
        for result in results:
            _same(result, torch.tanh(x @ x).sum(1))


class RowByRow(torch.nn.Module):
    """A linear layer of bytes, activations quantised by the largest magnitude of their row, as torchao writes it.

    ``gpu``: for GPUs.
    """

    def __init__(self, inner: int, columns: int, *, gpu: bool = False) -> None:
        super().__init__()
        self.gpu = gpu
        self.register_buffer("weight", torch.randint(-127, 128, (columns, inner), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(columns) / 100)

    def forward(self, x: Any) -> Any:
        ends = torch.amin(x, -1, keepdim=True).clamp(max=0), torch.amax(x, -1, keepdim=True).clamp(min=0)
        scale = (torch.maximum(-ends[0], ends[1]) / 127.5).clamp(min=1e-7)
        integers = torch.clamp(torch.round(x * (1 / scale)), -128, 127).to(torch.int8)
        if self.gpu:
            operands = integers, self.weight.t()
            sums = torch.ops.higher_order.out_dtype(torch.ops.aten.mm.default, torch.int32, *operands)
            return sums.to(x.dtype) * scale * self.scale
        return torch._int_mm(integers, self.weight.t()).to(x.dtype) * scale * self.scale


@pytest.mark.parametrize(("runtime", "gpu"), [("onnxruntime", False), ("onnxruntime", True), ("inductor", True)])
@pytest.mark.parametrize("verify", [False, True])
def test_products_of_bytes_are_exported(runtime: str, gpu: bool, verify: bool, compilations: list[bool]) -> None:
    model = torch.nn.Sequential(RowByRow(64, 96, gpu=gpu), torch.nn.GELU(), RowByRow(96, 32, gpu=gpu)).eval()
    compiled = _compiled(model, verify=verify, runtime=runtime)
    for rows in (24, 40):
        x = torch.randn(rows, 64)
        expected = model(x)
        _same(compiled(x), expected, atol=float(expected.abs().max()) / 50)  # an integer at a tie may go the other way
    assert compilations


def test_what_roundings_move_further_is_no_reason_to_fall_back(monkeypatch: pytest.MonkeyPatch) -> None:
    model = RowByRow(64, 32).eval()
    x = torch.randn(16, 64)
    scale = float(model(x).abs().max())
    _move_results(monkeypatch, 2e-3 * scale)
    _compiled(model)(x)
    _move_results(monkeypatch, 0.5 * scale)
    torch.compiler.reset()
    with pytest.warns(FallbackWarning, match="differs from PyTorch's"):
        _compiled(model)(x)


@pytest.mark.parametrize("runtime", ["onnxruntime", "eager", "inductor"])
@pytest.mark.parametrize("heads", [2, 1])  # heads that share one key are not exported as an operator
def test_attention_of_a_query_that_may_see_nothing_is_zero(runtime: str, heads: int, compilations: list[bool]) -> None:
    attend = torch.nn.functional.scaled_dot_product_attention
    query, key, value = (torch.randn(2, n, 6, 8) for n in (2, heads, heads))
    mask = torch.ones(6, 6, dtype=torch.bool).tril().repeat(2, 1, 1, 1)
    mask[0, ..., :2] = False  # padding on the left: the first two queries of the first sequence see nothing
    found = _compiled(lambda q, k, v, m: attend(q, k, v, m) + 1, runtime=runtime)(query, key, value, mask)
    _same(found, attend(query, key, value, mask) + 1)
    assert compilations


@pytest.mark.parametrize("window", [None, 3])
def test_queries_that_see_themselves_take_no_factor_at_any_size(window: int | None, results: list[Any]) -> None:
    def attend(x: Any) -> Any:
        places = torch.arange(x.shape[2])
        seen = places[None, :] <= places[:, None]
        if window is not None:
            seen = seen & (places[None, :] > places[:, None] - window)
        return torch.nn.functional.scaled_dot_product_attention(x, x, x, seen)

    compiled = torch.compile(attend, backend=eqsat, dynamic=True)
    for batch, length in ((3, 6), (4, 2), (3, 9)):
        x = torch.randn(batch, 2, length, 8)
        _same(compiled(x), attend(x))
    (result,) = results
    assert "ReduceMax" not in result.report.operators_after


def test_an_error_of_ours_falls_back(monkeypatch: pytest.MonkeyPatch) -> None:
    from eqsat.dynamo import program

    monkeypatch.setattr(program, "optimize", lambda *_, **__: {}["key"])
    with pytest.warns(FallbackWarning, match="KeyError: 'key'"):
        assert _compiled(torch.relu)(torch.ones(2)).tolist() == [1, 1]


def test_what_is_random_in_training_alone_is_compiled(compilations: list[bool]) -> None:
    layers = torch.nn.Dropout(0.5), torch.nn.Dropout(0.5, inplace=True), torch.nn.AlphaDropout(0.5)
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), *layers).eval()
    x = torch.randn(2, 8)
    _same(_compiled(model)(x), model(x))
    assert compilations


def test_models_to_be_trained_are_refused() -> None:
    from torch._dynamo.exc import BackendCompilerFailed

    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout(0.5))
    with pytest.raises(BackendCompilerFailed, match=r"dropout is active: call the model's eval\(\) first"):
        _compiled(model)(torch.randn(2, 8))
    with (
        torch.inference_mode(False),
        torch.enable_grad(),
        pytest.raises(BackendCompilerFailed, match=r"requires gradients, .*inference_mode"),
    ):
        _compiled(torch.nn.Linear(8, 8).eval())(torch.randn(2, 8))


def test_statistics_of_training_are_updated_once() -> None:
    def function(x: Any, mean: Any, variance: Any) -> Any:
        return torch.nn.functional.batch_norm(x, mean, variance, training=True)

    x = torch.randn(4, 8)
    own, expected = ([torch.zeros(8), torch.ones(8)] for _ in range(2))
    with pytest.warns(FallbackWarning, match="writes to its inputs"):
        found = _compiled(function)(x, *own)
    _same(found, function(x, *expected))
    _same(own, expected)
    _same(_compiled(lambda x: torch.nn.functional.batch_norm(x, None, None, training=True))(x), found)


def test_gradients_that_stay_inside_a_graph_are_no_training(compilations: list[bool]) -> None:
    with torch.inference_mode(False), torch.enable_grad():
        model, x = torch.nn.Linear(8, 8).eval(), torch.randn(2, 8)
        _same(_compiled(torch.no_grad()(model.forward))(x), model(x).detach())
        _same(_compiled(lambda x: model(x).detach() + 1)(x), model(x).detach() + 1)
        assert len(compilations) == 2


def test_gradients_that_are_enabled_inside_a_graph_are_pytorch_s() -> None:
    with torch.inference_mode(False), torch.no_grad():
        model, x = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()).eval(), torch.randn(2, 8)

        with pytest.warns(FallbackWarning, match="gradients are enabled inside it"):
            found = _compiled(torch.enable_grad()(model.forward))(x)
        assert found.requires_grad


@pytest.mark.parametrize("view", [lambda p: p.reshape(2, -1), lambda p: p[1], lambda p: p.to(torch.float32)])
def test_views_of_weights_are_returned_where_no_gradients_are_recorded(view: Any, compilations: list[bool]) -> None:
    with torch.inference_mode(False), torch.no_grad():
        layer = torch.nn.Linear(8, 8)

        def function(x: Any) -> Any:
            return view(layer.weight), layer(x).exp()

        x = torch.randn(2, 8)
        found = _compiled(function)(x)
        _same(found, function(x))
        assert found[0].data_ptr() == view(layer.weight).data_ptr()
        assert [y.requires_grad for y in found] == [y.requires_grad for y in function(x)]
        assert compilations == [False]


def test_weights_that_are_written_to_count_at_once(compilations: list[bool]) -> None:
    with torch.inference_mode(False), torch.no_grad():
        model = torch.nn.Linear(8, 8).eval()
        compiled = _compiled(model)
        x = torch.randn(2, 8)
        _same(compiled(x), model(x))
        for _ in range(backend.MOST_CHANGES):
            model.weight.mul_(2)
            with pytest.warns(UserWarning, match="weights of a graph have changed"):
                found = compiled(x)
            _same(found, model(x))
        model.weight.data = torch.randn(8, 8)
        with pytest.warns(FallbackWarning, match="written to"):
            found = compiled(x)
        _same(found, model(x))
        assert len(compilations) == 1 + backend.MOST_CHANGES


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.complex64])
def test_weights_that_are_written_to_behind_their_versions_count_too(dtype: Any) -> None:
    with torch.inference_mode(False), torch.no_grad():
        weight = torch.nn.Parameter(torch.randn(8, 8).to(dtype), requires_grad=False)
        compiled, x = _compiled(lambda x: (x * weight).abs().float()), torch.randn(2, 8, 8)
        for factor in (1, 2, 0.5):
            weight.data.mul_(factor)
            _same(compiled(x), (x * weight).abs().float())
        weight.data = weight.data * 3  # where that lies, the memory of before may be used again
        weight.data = weight.data * 3
        _same(compiled(x), (x * weight).abs().float())


def test_modules_of_the_same_code_may_change_as_often_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    from eqsat.dynamo import backend

    monkeypatch.setattr(backend, "MOST_CHANGES", 1)
    with torch.inference_mode(False):
        models = [torch.nn.Linear(3, 3) for _ in range(3)]
    compiled = [*map(_compiled, models)]
    x = torch.randn(2, 3)
    for _ in range(2):
        for model, run in zip(models, compiled, strict=True):
            with warnings.catch_warnings():
                warnings.simplefilter("error", FallbackWarning)
                _same(run(x), model(x))
            model.weight.data.add_(1)


def test_functions_that_are_mapped_over_a_batch_are_compiled(compilations: list[bool]) -> None:
    def function(x: Any) -> Any:
        return torch.vmap(lambda row: torch.nn.functional.layer_norm(row @ weights, (8,)).exp())(x)

    weights, x = torch.randn(8, 8), torch.randn(2, 5, 8)
    _same(_compiled(function)(x), function(x))
    assert compilations


def test_modules_of_the_same_code_keep_their_own_weights() -> None:
    with torch.inference_mode(False), torch.no_grad():
        models = [torch.nn.Linear(8, 8).eval() for _ in range(3)]
        compiled = [_compiled(model) for model in models]
        x = torch.randn(2, 8)
        for _ in range(2):
            for model, run in zip(models, compiled, strict=True):
                _same(run(x), model(x))


def test_weights_of_a_model_that_is_gone_are_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    runners: list[Any] = []
    run = backend._Runner.__call__
    monkeypatch.setattr(backend._Runner, "__call__", lambda self, *given: runners.append(self) or run(self, *given))
    with torch.inference_mode(False), torch.no_grad():
        model = Layer().eval()
        compiled, other = _compiled(model), Layer().eval()
        weights = [weakref.ref(p) for p in (*model.parameters(), *model.buffers())]
        for rows in (2, 3):
            compiled(torch.randn(rows, 8))
        assert all(runner._programs for runner in runners)
        del model, compiled
        gc.collect()
        assert [w() for w in weights] == [None] * len(weights)
        assert not any(runner._programs or runner._last for runner in runners)
        x = torch.randn(2, 8)
        _same(_compiled(other)(x), other(x))


def test_weights_without_a_version_are_inputs() -> None:
    weight = torch.nn.Parameter(torch.randn(3, 3), requires_grad=False)  # an inference tensor: the mode is on
    assert weight.is_inference()
    model = torch.nn.Linear(3, 3, bias=False).eval()
    model.weight = weight
    compiled, x = _compiled(model), torch.randn(2, 3)
    with pytest.warns(UserWarning, match=r"weights made under torch.inference_mode\(\), .*\(1\)"):
        _same(compiled(x), model(x))
    weight.mul_(2)
    _same(compiled(x), model(x))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"numeric": "exact"}, "did you mean 'numerics'"),
        ({"runtme": "eager"}, "did you mean 'runtime'"),
        ({"numerics": "exakt"}, "did you mean 'exact'"),
        ({"level": "most"}, "most"),
        ({"runtime": "tensorrt"}, "runtime 'tensorrt' does not exist"),
        ({"runtime": "eager", "threads": 1}, "'threads' is one of ONNX Runtime's"),
        ({"threads": "two"}, "threads is 'two'"),
        ({"threads": 0}, "threads is 0"),
        ({"feeds": []}, "'feeds' is none of the backend's"),
    ],
)
def test_options_are_checked(options: Any, said: str) -> None:
    from torch._dynamo.exc import BackendCompilerFailed

    with pytest.raises(BackendCompilerFailed, match=said):
        _compiled(torch.relu, **options)(torch.ones(2))


class Picture(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(3, 8, 3)
        self.norm = torch.nn.BatchNorm2d(8)
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        y = torch.relu(self.norm(self.convolution(x))).mean((2, 3))
        return self.linear(y) + torch.arange(4, device=x.device)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("runtime", [None, "eager"])
def test_on_a_gpu_programs_run_in_pytorch(dtype: str, runtime: str | None) -> None:
    kind = getattr(torch, dtype)
    model = Picture().eval().to("cuda", kind)
    compiled = torch.compile(model, backend=eqsat, options={"runtime": runtime} if runtime else {})
    for batch in (2, 3):
        x = torch.randn(batch, 3, 16, 16, device="cuda", dtype=kind)
        found = compiled(x)
        assert found.is_cuda
        _same(found, model(x), atol={"float32": 1e-3, "float16": 1e-2, "bfloat16": 5e-2}[dtype])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("static", [True, False])
def test_a_program_is_a_cuda_graph_that_writes_to_its_inputs(static: bool) -> None:
    model, expected = Cache(own=False).eval().cuda(), torch.zeros(2, 3, 8, 4, device="cuda")
    compiled = torch.compile(model, backend="eqsat", mode="reduce-overhead")
    kept, keys = [], torch.zeros_like(expected)
    for step in range(8):
        x, at = torch.randn(2, 3, 1, 4, device="cuda"), torch.tensor([step], device="cuda")
        keys = keys if static else keys.clone()
        kept.append((compiled(x, at, keys), model(x, at, expected)))
        _same(keys, expected)
    for found, wanted in kept:  # later calls leave the results of earlier ones alone
        _same(found, wanted)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_onnxruntime_is_no_runtime_for_a_gpu() -> None:
    x = torch.randn(2, 8, device="cuda")
    with pytest.warns(FallbackWarning, match="its inputs are on cuda:0, and ONNX Runtime runs on the CPU here"):
        _same(_compiled(torch.relu, runtime="onnxruntime")(x), torch.relu(x))


def test_modes_are_those_of_torch() -> None:
    x = torch.randn(2, 8)
    for mode in ("default", "reduce-overhead", "max-autotune"):
        _same(torch.compile(torch.relu, backend="eqsat", mode=mode)(x), torch.relu(x))
        torch.compiler.reset()
    with pytest.raises(Exception, match="mode 'max-autotun' does not exist; did you mean 'max-autotune'"):
        torch.compile(torch.relu, backend="eqsat", mode="max-autotun")(x)


def test_programs_for_a_gpu_are_chosen_for_one() -> None:
    settings = Settings.of({})
    assert settings.runtime_on("cuda:0") == "inductor"
    assert settings.options_on("cuda:0")["target"] == "inductor-cuda"


def test_convolutions_and_norms_of_bfloat16_are_optimised() -> None:
    model = Picture().eval().to(torch.bfloat16)
    x = torch.randn(2, 3, 16, 16, dtype=torch.bfloat16)
    _same(_compiled(model, runtime="eager")(x), model(x), atol=5e-2)


@pytest.mark.parametrize("heads", [4, 1])
def test_attention_is_exported_whole_or_in_steps(heads: int) -> None:
    """Torch has no export as one operator where heads share one key."""
    attention = torch.nn.functional.scaled_dot_product_attention
    q, k, v = torch.randn(2, 4, 8, 16), torch.randn(2, heads, 8, 16), torch.randn(2, heads, 8, 16)
    mask = torch.rand(2, 1, 8, 8) < 0.5
    compiled = _compiled(lambda *given: attention(*given[:3], attn_mask=given[3]), runtime="eager")
    _same(compiled(q, k, v, mask), attention(q, k, v, attn_mask=mask))


def test_a_unit_below_the_normal_numbers_is_no_difference() -> None:
    x = torch.full(
        (4,), 0.498, dtype=torch.float16
    )  # 6e-8 * x is above half of the least number, and 6e-8 rounded, times x, below
    found = torch.compile(lambda x: x * 6e-8, backend=eqsat, options={"runtime": "eager"})(x)
    assert (found - 6e-8 * x).abs().max() <= 2**-24


def test_extents_of_one_size_are_numbers_where_torch_has_marked_them() -> None:
    exported: list[Any] = []

    def export(module: Any, examples: Any) -> Any:
        x = torch.randn(3, 8)
        torch._dynamo.maybe_mark_dynamic(x, 0)  # as Inductor does what it returns
        exported.append(export_captured(read_captured(module, examples, 0), [], [x], {}, symbolic=False))
        return module.forward

    torch.compile(torch.relu, backend=export)(torch.randn(3, 8))
    (value,) = [n.meta["val"] for n in exported[0].graph.nodes if n.op == "placeholder"]
    assert all(type(extent) is int for extent in value.shape)


def test_what_is_finite_in_half_precision_is_exported() -> None:
    """Encoders of transformers ask for it in half precision alone."""
    x = torch.tensor([1.0, torch.inf, torch.nan, 3.0], dtype=torch.float16)
    for function in (torch.isfinite, lambda x: (2 * x).isfinite()):
        _same(_compiled(function, runtime="eager")(x), torch.isfinite(x))


def test_truth_values_are_finite(compilations: list[bool]) -> None:
    x = torch.randn(3)
    _same(_compiled(lambda x: torch.isfinite(x > 0) & (x > 0))(x), x > 0)
    assert compilations == [False]


def test_repetitions_whose_sum_is_known_are_exported(compilations: list[bool]) -> None:
    def function(x: Any, counts: Any) -> Any:
        return x.repeat_interleave(counts, 0, output_size=6) * 2

    x, counts = torch.randn(3, 2), torch.tensor([1, 3, 2])
    _same(_compiled(function)(x, counts), function(x, counts))
    assert compilations == [False]
