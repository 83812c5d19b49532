"""Calls of ``nn.Module`` instances: global hooks, own hooks, and ``forward``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.hooks import RemovableHandle

from engine.ir.guards.python_values import DictKeysMatch, LengthMatch
from engine.ir.sources.attributes import AttrSource, ModuleHooksSource
from engine.ir.sources.base import Source
from engine.ir.sources.containers import GetItemSource
from engine.ir.sources.roots import ConstantSource
from engine.torch_private.modules import infer_parameters, module_hooks
from engine.trace.annotations import NNModuleVariable, Tracer
from engine.trace.exc import BreakGraph, RestartTracing, Unsupported, UserException
from engine.trace.variables.base import Args, Kwargs, Variable, is_none, realize
from engine.trace.variables.callable_registry import register_break
from engine.trace.variables.containers.dicts import DictVariable
from engine.trace.variables.containers.sequences import TupleVariable, items_or_value

_GLOBAL_HOOKS = (
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_backward_hooks",
    "_global_backward_pre_hooks",
)


_NO_HOOKS: dict[Any, Any] = {}


def call_graph_module(tx: Tracer, module: NNModuleVariable, args: Args, kwargs: Kwargs) -> Variable:
    """Trace ``__call__`` of a ``GraphModule`` as the call of any module.

    torch's wrapper differs only by the text that it prints when the graph raises.

    Raises:
        Unsupported: the graph raises, or the class already had its own ``__call__``.
    """
    wrapped_call = module.cls._wrapped_call  # type: ignore[attr-defined]
    attribute_dicts = (module.real_object.__dict__, module.attr_writes)
    if wrapped_call.cls_call is not None or any("_wrapped_call" in attributes for attributes in attribute_dicts):
        raise Unsupported("module-call", f"{module.describe()}, whose class overrides __call__, is called")
    with BreakGraph("module-call", f"the graph of {module.describe()} raises", UserException):
        return call_module(tx, module, args, kwargs)


def call_module(tx: Tracer, module: NNModuleVariable, args: Args, kwargs: Kwargs) -> Variable:
    """Call a module with its hooks, and set its path for the records meanwhile."""
    frame = tx.frame
    outer, frame.module_path = frame.module_path, module.path or frame.module_path
    try:
        return ModuleCall(tx, module).run(args, kwargs)
    finally:
        frame.module_path = outer


@dataclass(frozen=True, slots=True)
class ModuleCall:
    """One call of a module."""

    tx: Tracer
    module: NNModuleVariable

    def run(self, args: Args, kwargs: Kwargs) -> Variable:
        """Call ``forward``, with hooks if there are any."""
        tx, module = self.tx, self.module
        direct = tx.call_stack.direct_callee is module
        has_global_hooks = self._has_global_hooks()
        has_own_hooks = any(self._hook_dict(table) for table in ModuleHooksSource.TABLES)
        if not has_own_hooks and not module.attr_writes and not module.is_constructed:
            why = "the module was called, and hooks would run with it"
            tx.guard(LengthMatch, ModuleHooksSource(module.source), 0, why=why)
        if has_own_hooks or has_global_hooks:
            return self._call_with_hooks(args, kwargs)
        forward = realize(tx, module.get_attr(tx, "forward"))
        tx.call_stack.direct_callee = forward if direct else None
        return forward.call(tx, args, kwargs)

    def _hook_dict(self, table: str) -> dict[Any, Any]:
        """Return a hook dict in its current state: the real dict, or entries of traced variables."""
        tx, module = self.tx, self.module
        real: dict[Any, Any] = module.real_object.__dict__.get(table, _NO_HOOKS)
        if table not in module.attr_writes and id(real) not in tx.objects.variables_by_id:
            return real
        hooks = realize(tx, module.get_attr(tx, table))
        return {} if hooks.dict_contents is None else hooks.dict_contents.entries

    def _has_global_hooks(self) -> bool:
        """Return True if global module hooks run, and guard on them."""
        tx, namespace = self.tx, torch.nn.modules.module.__dict__
        cause = tx.guard_cause("a module was called, and global hooks would run with it")
        for name in _GLOBAL_HOOKS:
            hooks = namespace[name]
            if hooks and "backward" in name:
                raise Unsupported("module-hook", "a module is called while global backward hooks are set")
            source = ConstantSource(hooks, name)
            tx.guards.add(
                DictKeysMatch(source, tuple(hooks), cause=cause) if hooks else LengthMatch(source, 0, cause=cause)
            )
        return any(namespace[name] for name in _GLOBAL_HOOKS)

    def _call_with_hooks(self, args: Args, kwargs: Kwargs) -> Variable:
        tx, module = self.tx, self.module
        if issubclass(module.cls, torch.nn.modules.lazy.LazyModuleMixin):
            _infer_lazy_parameters(tx, module, args, kwargs)
        if self._hook_dict("_backward_hooks") or self._hook_dict("_backward_pre_hooks"):
            raise Unsupported("module-hook", f"the hooks of {module.describe()} run")
        for hook, with_keywords in self._hooks("_forward_pre_hooks"):
            result = self._call_hook(hook, with_keywords, args, kwargs)
            if is_none(result):
                continue
            if with_keywords:
                args, kwargs = self._arguments_from_hook(result)
            else:
                args = items_or_value(tx, result)
        output = self._forward(args, kwargs)
        for hook, with_keywords in self._hooks("_forward_hooks"):
            result = self._call_hook(hook, with_keywords, args, kwargs, output)
            output = output if is_none(result) else result
        return output

    def _call_hook(
        self, hook: Variable, with_keywords: bool, args: Args, kwargs: Kwargs, *output: Variable
    ) -> Variable:
        hook_args: Args = [self.module, TupleVariable(list(args))]
        if with_keywords:
            hook_args.append(DictVariable.from_str_keys(kwargs))
        return realize(self.tx, hook.call(self.tx, [*hook_args, *output], {}))

    def _forward(self, args: Args, kwargs: Kwargs) -> Variable:
        """Call ``forward``. Break the graph if it raises and a hook has ``always_call=True``."""
        always = self._hook_dict("_forward_hooks_always_called")
        always_around = module_hooks._global_forward_hooks_always_called
        try:
            return realize(self.tx, self.module.get_attr(self.tx, "forward")).call(self.tx, args, kwargs)
        except UserException as error:
            if always or always_around:
                raise Unsupported(
                    "raises", f"{error.exception.describe()} is raised where a hook is always called"
                ) from error
            raise

    def _arguments_from_hook(self, result: Variable) -> tuple[Args, Kwargs]:
        """Return the arguments that a pre-hook with kwargs returns."""
        parts = items_or_value(self.tx, result)
        if len(parts) == 2:
            positional, keywords = (realize(self.tx, i) for i in parts)
            new_args, named = positional.sequence_contents, keywords.dict_contents
            if new_args is not None and new_args is positional and named is not None and named is keywords:
                return list(new_args.items), {str(k): v for k, (_, v) in named.entries.items()}
        raise Unsupported(
            "module-hook",
            f"a hook of {self.module.describe()} does not return a tuple of arguments and keyword arguments",
        )

    def _hooks(self, table: str) -> list[tuple[Variable, bool]]:
        """Return the hooks in call order, global ones first, each with its with-kwargs flag."""
        tx, module = self.tx, self.module
        everywhere = torch.nn.modules.module.__dict__
        real = everywhere[f"_global{table}"]
        with_kwargs = everywhere.get(f"_global{table}_with_kwargs", {})
        source: Source = ConstantSource(real, f"_global{table}")
        hooks = [(tx.wrap(hook, GetItemSource(source, key)), key in with_kwargs) for key, hook in real.items()]
        own_hooks = self._hook_dict(table)
        with_keywords = self._hook_dict(f"{table}_with_kwargs")
        base = AttrSource(module.source, table)
        if own_hooks is not module.real_object.__dict__[table]:
            return [*hooks, *((realize(tx, hook), key in with_keywords) for key, (_, hook) in own_hooks.items())]
        cause = tx.guard_cause("its hooks ran")
        tx.guards.add(DictKeysMatch(base, tuple(own_hooks), cause=cause))
        if with_keywords:
            keywords = AttrSource(module.source, f"{table}_with_kwargs")
            tx.guards.add(DictKeysMatch(keywords, tuple(with_keywords), cause=cause))
        hooks += [(tx.wrap(hook, GetItemSource(base, key)), key in with_keywords) for key, hook in own_hooks.items()]
        return hooks


_HOOK_REGISTRATIONS = (torch.nn.Module.register_forward_hook, torch.nn.Module.register_forward_pre_hook)
register_break("module-hook", "a hook is registered", RemovableHandle, *_HOOK_REGISTRATIONS)


def _infer_lazy_parameters(tx: Tracer, module: NNModuleVariable, args: Args, kwargs: Kwargs) -> None:
    """Run ``_infer_parameters`` of a lazy module on fake arguments, then restart the trace.

    The hook mutates the real module, so the restarted trace sees an ordinary module.

    Raises:
        Unsupported: random numbers used earlier in the graph would be sampled after those of the parameters,
            or an initializer not from torch could observe the pending side effects.
        RestartTracing: the parameters are initialized.
    """
    real: Any = module.real_object
    hooks = module.real_object.__dict__["_forward_pre_hooks"]
    first = next(iter(hooks.values()), None)
    if getattr(first, "__func__", None) is not infer_parameters:
        raise Unsupported("lazy-module", f"the hooks of the lazy {module.describe()} run")
    random = next(
        (n for n in tx.graph.graph.nodes if _RANDOM_OPS.search(str(getattr(n.target, "__name__", n.target)))), None
    )
    if random is not None or (
        tx.side_effects.mutated_variables and (module.attr_writes or not _uses_torch_initializers(type(real)))
    ):
        raise Unsupported("lazy-module", f"the lazy {module.describe()} is used after random numbers or side effects")
    fakes = [realize(tx, a).as_node_arg(tx)[1] for a in args]
    keywords = {k: realize(tx, v).as_node_arg(tx)[1] for k, v in kwargs.items()}
    with BreakGraph("lazy-module", f"the parameters of the lazy {module.describe()} are initialized", Exception):
        real._infer_parameters(real, tuple(fakes), keywords)
    reason = Unsupported("lazy-module", f"the lazy {module.describe()} inferred its sizes")
    raise RestartTracing(0, reason)


def _uses_torch_initializers(cls: Any) -> bool:
    """Return True if only torch's code, which reads just sizes, initializes the parameters."""
    makers = (cls.initialize_parameters, cls.reset_parameters, cls._infer_parameters)
    return all(m.__module__.startswith("torch.nn.modules.") for m in makers)


_RANDOM_OPS = re.compile(
    "rand|dropout|bernoulli|multinomial|normal_|normal$|uniform|exponential|geometric|cauchy|poisson|binomial|rrelu|attention|rnn|lstm|gru|checkpoint"
)
"""Operations that may sample random numbers."""
