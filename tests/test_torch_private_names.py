"""Each form in which code can reach a private name of torch is found."""

from __future__ import annotations

import ast
import pathlib

import pytest

from tests import house_rules, torch_private_names

FORMS = {
    "import torch._subclasses": "torch._subclasses",
    "import torch._subclasses as s": "torch._subclasses",
    "import torch._subclasses.fake_tensor as s\ns.FakeTensor": "torch._subclasses.fake_tensor",
    "from torch._guards import Source": "torch._guards.Source",
    "from torch.utils import _pytree as pytree": "torch.utils._pytree",
    "from torch import _guards": "torch._guards",
    "from torch.fx.experimental.symbolic_shapes import ShapeEnv": "torch.fx.experimental.symbolic_shapes.ShapeEnv",
    "import torch\nx = torch._C._dispatch_keys(t)": "torch._C._dispatch_keys",
    "import torch as t\nt.nn.Module._call_impl": "torch.nn.Module._call_impl",
    "from torch import nn\nnn.Module._call_impl": "torch.nn.Module._call_impl",
    "from torch.autograd import forward_ad\nforward_ad._current_level": "torch.autograd.forward_ad._current_level",
    "import torch\nc = torch\nc._sync(x)": "torch._sync",
    "import torch\nc: object = torch.autograd\nc._is_checkpoint_valid()": "torch.autograd._is_checkpoint_valid",
    "import torch\ngetattr(torch, '_sync')": "torch._sync",
    "import torch\ngetattr(torch, f'_sync{x}')": "torch._sync",
    "import torch\ngetattr(torch._C, name)": "torch._C",
    "import torch\nhasattr(torch.nn.Module, '_call_impl')": "torch.nn.Module._call_impl",
    "import torch\nsetattr(torch.nn.Module, '_call_impl', f)": "torch.nn.Module._call_impl",
    "import torch\ngetattr(getattr(torch, 'nn'), '_x')": "torch.nn._x",
    "import torch\nvars(torch)['_sync']": "torch._sync",
    "import torch\ntorch.autograd.__dict__['_x']": "torch.autograd._x",
    "import importlib\nimportlib.import_module('torch._inductor')": "torch._inductor",
    "import sys\nsys.modules['torch._dynamo'].reset()": "torch._dynamo.reset",
    "import sys\nsys.modules.get('torch._dynamo.utils')": "torch._dynamo.utils",
    "def f():\n    from torch._inductor import config": "torch._inductor.config",
}  # fmt: skip
"""Code by form, with the name that is reported."""


def uses(code: str) -> list[str]:
    """Return the private names that code uses."""
    return [use.name for use in torch_private_names.find_uses(ast.parse(code))]


@pytest.mark.parametrize("code", FORMS)
def test_a_private_name_is_found(code: str) -> None:
    """A private name is found in each form, with the whole chain."""
    assert FORMS[code] in uses(code)


@pytest.mark.parametrize(
    "code",
    [
        "import torch\ntorch.ops.aten._to_copy.default",
        "import torch\ntorch.autograd.forward_ad.enter_dual_level()",
        "import torch\ntorch.Tensor.__add__",
        "from torch.fx.traceback import annotate",
        "from engine.torch_private.dispatch import dispatch_keys\ndispatch_keys(t)",
        "text = 'torch._C._dispatch_keys'",
    ],
)
def test_public_names_pass(code: str) -> None:
    """Operators, special methods, public modules and names in texts are no private names."""
    assert uses(code) == []


def test_code_to_compile_may_call_what_libraries_call(tmp_path: pathlib.Path) -> None:
    """Listed names pass in tests only, and each listed one is used there."""
    for folder in ("engine", "tests"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.py").write_text("import torch\ntorch._foreach_add_(x, 1)\n", encoding="utf-8")
    assert [finding.path for finding in house_rules.check_torch_private(tmp_path)] == ["engine/a.py"]
    tests = (p.read_text(encoding="utf-8") for p in pathlib.Path(__file__).parent.glob("engine/**/*.py"))
    text = "\n".join(tests)
    assert [name for name in torch_private_names.CALLED_BY_LIBRARIES if name not in text] == []


def test_the_package_alone_may_use_them(tmp_path: pathlib.Path) -> None:
    """The check of ``make lint`` reports file and line, except in the package."""
    for name in ("engine/torch_private/a.py", "engine/a.py"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("import torch\n\ntorch._sync\n", encoding="utf-8")
    assert [str(finding) for finding in house_rules.check_torch_private(tmp_path)] == [
        "engine/a.py:3: torch._sync is private to torch: import it from engine.torch_private"
    ]
    assert house_rules.check_torch_private in house_rules.CHECKS
