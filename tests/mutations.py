"""Take each check of a module's guards out, one at a time, and see that a test is red: `python tests/mutations.py`.

A mutation is a text of one file and what stands in its place. It is made in a copy of the checkout, whose C module is
compiled anew by the tests; what does not compile is an error of this list, and no red test. Some checks exist only
where Python has watchers of dicts, or only where it has none: the list says which.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GUARDS = "tests/functions/test_instance_guards.py"
CODE = "tests/functions/test_code_guard.py"
SET = "tests/hit/test_guard_set.py"
NAMED = "tests/hit/test_global_guards.py"
CALL = "tests/hit/test_call.py"
TABLE = "tests/hit/test_table.py"
SYMBOLS = "tests/hit/test_symbols.py"
SIGNS = "tests/hit/test_native.py"
NUMBERS, NEWCOMERS = "tests/online/test_repeats.py", "tests/dispatch/test_newcomers.py"
BOUND = "tests/keys/test_signature.py"
JOINT, OF_JOINT = "functions/parts/joint.py", "tests/functions/test_joint.py"
ANEW, OF_INNER = "functions/parts/apart.py", "tests/functions/test_inner_results.py"
PROGRAM, OF_PROGRAM = "functions/parts/steps.py", "tests/functions/test_steps.py"
WATCHED, REMOTE_BUILD = "tests/choices/test_watch.py", "tests/functions/test_remote_build.py"
PARTIAL, OF_PARTIAL = "functions/parts/partial.py", "tests/functions/test_partial.py"
AGAIN_OF, NOTED = "functions/parts/again.py", "functions/parts/noted.py"
SOURCES = "functions/parts/sources.py"
SENT_KERNEL, OF_SENT_KERNEL = "kernels/runtime/sent_kernel.py", "tests/kernels/test_sent_kernel.py"
ASKED, OF_ASKED = "kernels/runtime/compile_request.py", "tests/kernels/test_compile_request.py"
LAUNCHES = "tests/dispatch/test_launches.py"
TURNS = "tests/choices/test_turns_of_calls.py"
CONFIGS = "kernels/remote_configs.py"
WARMUP, OF_WARMUP = "autotune/warmup.py", "tests/autotune/test_warmup.py"
DIFFERENCE, OF_DIFFERENCE = "autotune/compare.py", "tests/autotune/test_compare.py"
ACCURACY, OF_ACCURACY = "functions/checks/accuracy.py", "tests/functions/test_accuracy.py"
OF_TRIAL = "tests/autotune/test_trial.py"
CUT, OF_CUT = "functions/parts/cut.py", "tests/functions/test_cut.py"
WATCHERS = sys.version_info >= (3, 12)


@dataclass(frozen=True)
class Mutation:
    """``text`` of a file below `shapedispatch` becomes ``other``: then one of the ``tests`` must fail."""

    file: str
    text: str
    other: str
    tests: tuple[str, ...] = (GUARDS,)
    watchers: bool | None = None
    """Whether it is only for a Python with watchers, or without; None: for any."""


RECORD, TENSOR, ALL = "hit/csrc/instance_record.c", "hit/csrc/tensor_view.c", "hit/csrc/code_guard.c"
FILTER = "functions/guards/instance_guards.py"
NAMES = "hit/csrc/skipped_guards.c"
GRAPH, WRAPPERS = "hit/csrc/graph_call.c", "tests/functions/test_skip_wrappers.py"
ALIGNED, BUILT = "tests/hit/test_aligned_code.py", "tests/functions/test_inductor.py"
DRAWS, OF_DRAWS = "functions/checks/draws.py", "tests/functions/test_draws.py"
AGAIN = "tests/functions/test_again.py"
INDUCTOR, STEPS = "functions/compile/inductor.py", "tests/functions/test_skip_autograd.py"
MEMORY, APART = "functions/guards/memory_guard.py", "tests/functions/test_memory_guard.py"
BUILD, GRAPHS = "functions/compile/build.py", "functions/compile/graph.py"
PLACE, ON_CLASSES = "functions/guards/object_guard.py", "functions/guards/code_guard.py"
CASTS = "functions/guards/guard_filter.py"
OWN = "functions/unseen/own_names.py"
OPERATORS, OF_OPERATORS = "graphs/operators.py", "tests/graphs/test_operators.py"
UNSEEN, TRACER = "functions/unseen/unseen.py", "functions/compile/tracer.py"
FORMULAS, OF_FORMULAS = "functions/guards/operator_guards.py", "tests/functions/test_operator_guards.py"
SENT = "tests/functions/test_sent_operators.py"
LOOKUPS, SOUGHT = "functions/unseen/lookups.py", "tests/functions/test_lookups.py"
CONTEXT, VARS = "functions/unseen/context_vars.py", "tests/functions/test_context_vars.py"
CAPTURES, CAUGHT = "functions/unseen/captures.py", "functions/unseen/caught.py"
WORLDS = "tests/functions/test_changed_worlds.py"
COMPARED, PLACES = "tests/functions/test_comparisons.py", "tests/functions/test_object_guard.py"
RECORDED, OF_PLAIN = "functions/recorded.py", "tests/functions/test_recorded.py"
QUESTIONS, CACHE = "hit/csrc/torch_questions.c", "hit/csrc/signature_cache.c"
INSTANCES, OF_INSTANCES = "keys/instances.py", "tests/keys/test_instances.py"
TREE, LAYOUT, CONTEXTS = "tests/keys/test_tree.py", "tests/keys/test_layout.py", "tests/choices/test_context.py"
FILTERED, NATIVE = "tests/functions/test_guard_filter.py", "tests/hit/test_native.py"
SIGNED, COMPARES = "hit/csrc/instance_signature.c", "functions/unseen/comparisons.py"
MUTATIONS = (
    # States of one key.
    Mutation("hit/table.py", "(*for_one[:STATES_A_KEY], *for_any", "(*for_one[:STATES_A_KEY], *for_any[:0]", (TABLE,)),
    # Arguments that are objects of ordinary classes, or functions.
    Mutation(INSTANCES, "or _is_computed(kind, held)", "", (OF_INSTANCES,)),
    Mutation(INSTANCES, "        kind is object\n        or ", "        ", (OF_INSTANCES,)),
    Mutation(INSTANCES, " or any(map(_is_of_c, kind.__mro__[:-1]))", "", (OF_INSTANCES,)),
    Mutation(INSTANCES, "kind.__getattribute__ is usual and ", "", (OF_INSTANCES,)),
    Mutation(INSTANCES, ' and not hasattr(kind, "__torch_function__")', "", (OF_INSTANCES,)),
    Mutation(INSTANCES, "        return not item or not all(", "        return not all(", (OF_INSTANCES,)),
    Mutation(INSTANCES, "len(held) > MOST_ATTRIBUTES or ", "", (OF_INSTANCES,)),
    Mutation(INSTANCES, "return any(_is_alive(getattr", "return False and any(_is_alive(getattr", (OF_INSTANCES,)),
    Mutation(
        "keys/tree.py", " if isinstance(value, (list, tuple, dict)) or is_dataclass(value) else None", "", (TREE,)
    ),
    Mutation("keys/tree.py", "STATEFUL = (Module, FunctionType, ", "STATEFUL = (Module, ", (TREE, CONTEXTS)),
    Mutation("keys/tree.py", "FunctionType, Enum, type)", "FunctionType, type)", (CONTEXTS,)),
    Mutation("keys/tree.py", "FunctionType, Enum, type)", "FunctionType, Enum)", (CONTEXTS,)),
    Mutation("keys/tree.py", "    if isinstance(value, tuple) or is_dataclass(value):\n", "    if 0:\n", (CONTEXTS,)),
    Mutation(GRAPHS, "    return None if beyond else match[1]", "    return match[1]", (CONTEXTS,)),
    Mutation(GRAPHS, "value.is_neg() or ", "", ("tests/functions/test_graph.py",)),
    Mutation(GRAPHS, 'version > getattr(one, "_version", 0)', "version > 0", ("tests/functions/test_graph.py",)),
    Mutation(CASTS, "isinstance(value, STATEFUL)", "isinstance(value, Module)", (FILTERED, WORLDS)),
    Mutation(CASTS, 'Verdict.CHECK if kind == "HASATTR"', 'Verdict.IMPLIED if kind == "HASATTR"', (FILTERED, WORLDS)),
    Mutation("keys/layout.py", "in (str, tuple):  # a keyword", "is str:  # a keyword", (LAYOUT,)),
    Mutation(SIGNED, "|| is_computed(type, name) ", "", (NATIVE,)),
    Mutation(SIGNED, "is_constant(value) && sign_item", "sign_item", (NATIVE,)),
    Mutation(COMPARES, "        _guard_functions(every)\n", "", (COMPARED,)),
    Mutation(COMPARES, "operator.is_not, hash)", "operator.is_not)", (COMPARED,)),
    Mutation(COMPARES, "variables.PolyfilledFunctionVariable)\n", ")\n", (COMPARED,)),
    # What is compared, and what is looked for in a list.
    Mutation(UNSEEN, "            self.compared.noted(tracing, self._found.append),\n", "", (COMPARED,)),
    Mutation(UNSEEN, "            memberships_compared(tracing, self._found.append),\n", "", (COMPARED,)),
    Mutation(UNSEEN, "            python_state_guarded(tracing),\n", "", (SOUGHT,)),
    # What is looked for, and what is read of a ContextVar or of a capture.
    Mutation(CAUGHT, "    variable.install_dict_contains_guard(tx, [key])\n", "", (SOUGHT,)),
    Mutation(CAUGHT, "        variable.install_dict_keys_match_guard()\n", "        pass\n", (SOUGHT,)),
    Mutation(CAUGHT, "self.left[frame.f_code] = None", "pass", (WORLDS,)),
    Mutation(CAUGHT, "step.opname == _RAISE and step.arg", "step.opname == _RAISE", (WORLDS,)),
    Mutation(CAUGHT, "elif _looks_at_it(frame):", "elif False:", (WORLDS,)),
    Mutation(LOOKUPS, "        self.names.add(name)\n", "", (WORLDS,)),
    Mutation(LOOKUPS, "self._note_value(holder.value, name)", "pass", (WORLDS,)),
    Mutation(LOOKUPS, "self._note_inherited(holder, name)", "pass", (WORLDS,)),
    Mutation(LOOKUPS, " and not (stays(value) and given.source is not None)", " and not stays(value)", (WORLDS,)),
    Mutation(LOOKUPS, "[bases.index(behind) + 1 :]", "", (WORLDS,)),
    Mutation(LOOKUPS, "(id(cls), id(after), name)", "(id(cls), 0, name)", (WORLDS,)),
    Mutation(LOOKUPS, "            if not one.is_realized()", "            if False", (WORLDS,)),
    Mutation(LOOKUPS, "replaced(frames, _LOAD_GLOBAL, pushing)", "contextlib.nullcontext()", (WORLDS,)),
    Mutation(LOOKUPS, 'replaced(maker, "call_function", giving)', "contextlib.nullcontext()", (WORLDS,)),
    Mutation(LOOKUPS, '"call_method", giving', '"call_method", lambda one: one', (WORLDS,)),
    Mutation(CONTEXT, "if answer is not None and variable.source is not None:", "if False:", (WORLDS,)),
    Mutation(UNSEEN, "if isinstance(value, type) and _answers_for_itself(value):", "if False:", (WORLDS,)),
    Mutation(PLACE, "if isinstance(one, deque):", "if False:", (WORLDS,)),
    Mutation(PLACE, "if isinstance(one, torch.autocast):", "if False:", (WORLDS,)),
    Mutation(PLACE, "isinstance(one, Tensor) and (names is None", "False and (names is None", (WORLDS,)),
    Mutation(ON_CLASSES, "for name, base in {**found, **bases}.items()", "for name, base in found.items()", (WORLDS,)),
    Mutation(UNSEEN, "if isinstance(value, deque) and value.maxlen is not None:", "if False:", (WORLDS,)),
    Mutation(UNSEEN, 'if getattr(value, "_dynamo_marked_constant", False) is True:', "if False:", (WORLDS,)),
    Mutation(UNSEEN, "if any(part.co_flags & inspect.CO_COROUTINE for", "if any(False for", (WORLDS,)),
    Mutation(UNSEEN, "if modes and modes[-1] != self._keeps_gradients:", "if False:", (WORLDS,)),
    Mutation(UNSEEN, "and _is_left_in_the_graph(node.target)", "and False", (WORLDS,)),
    Mutation(UNSEEN, "        forget_slots()\n", "", (WORLDS,)),
    Mutation(CASTS, "for device in _CASTING)", 'for device in ("cpu", "cuda"))', (WORLDS,)),
    Mutation(
        "functions/guards/names.py", "for name in code.co_names), *asked)", "for name in code.co_names))", (WORLDS,)
    ),
    Mutation(UNSEEN, "for kind in _wrappers(one) if not", "for kind in () if not", (OF_FORMULAS,)),
    Mutation("functions/compile/operators.py", "and not is_of_others(usual.__code__)", "and False", (WORLDS,)),
    Mutation(UNSEEN, 'yield from (f"what an operator reads', 'yield from ("" for _ in () if f"', (WORLDS,)),
    Mutation(UNSEEN, "            *guards_on(self._operators),\n", "", (WORLDS,)),
    Mutation(FORMULAS, "if there and (trains or", "if there and False and (trains or", (OF_FORMULAS,)),
    Mutation(
        FORMULAS,
        "_follow_each(definition._torch_dispatch_fns",
        "_follow_each(() and definition._torch_dispatch_fns",
        (OF_FORMULAS,),
    ),
    Mutation(FORMULAS, "left += [more for", "left += [more for _ in () for", (OF_FORMULAS,)),
    Mutation(FORMULAS, "_follow_each(operator.py_kernels", "_follow_each(() and operator.py_kernels", (OF_FORMULAS,)),
    Mutation("functions/compile/process_state.py", "            if there != here:", "            if False:", (SENT,)),
    Mutation(OWN, "        install_guard(holder.source", "        str(holder.source", (WORLDS,)),
    Mutation(OWN, 'if first.opname == "LOAD_CONST" and second', "if second", (WORLDS,)),
    Mutation(LOOKUPS, "                self._note_attribute(holder, name)\n", "", (SOUGHT,)),
    Mutation(CAUGHT, "step.opname == _RAISE and step.arg", "step.opname", (SOUGHT,)),
    Mutation(CONTEXT, "return tuple(self._read.values())", "return ()", (VARS,)),
    Mutation(CONTEXT, "for one, held in self._set.items() if held)", "for one in ())", (VARS,)),
    Mutation(CONTEXT, "if self._was_set and not all(map(_is_known, called)):", "if False:", (VARS,)),
    Mutation(CONTEXT, " and value_of(args[0]) is held[-1][0]", "", (VARS,)),
    Mutation(CONTEXT, "return type(value), value if", "return None, value if", (VARS,)),
    Mutation(CAPTURES, "return tuple(self._asked.values())", "return ()", ("tests/functions/test_captures.py",)),
    Mutation(TRACER, "        self.unseen.guard_at_the_end()\n", "", (COMPARED,)),
    Mutation(TRACER, "                tuples_guarded(self._is_tracing),\n", "", (PLACES,)),
    # What dicts hold: attributes, parameters, buffers, submodules, hooks.
    Mutation(
        RECORD, "if (!dict_unchanged(dicts[i].dict, dicts[i].mark, record->count))", "if (dicts == NULL)", watchers=True
    ),
    Mutation(RECORD, "if (!dict_unchanged(dict->dict, dict->mark, 0))", "if (0)", watchers=False),
    Mutation(RECORD, "(seen->names != NULL && *seen->names_at != seen->names)", "0"),
    # Objects and their classes.
    Mutation(RECORD, "Py_TYPE(seen->object) != seen->type || !has", "!has"),
    Mutation(RECORD, "|| !has_version(seen->type, seen->version)", ""),
    # Lists. The code of functions that an instance holds is asked twice: here, and of those that were traced.
    Mutation(RECORD, "PyList_GET_SIZE(object) != PyTuple_GET_SIZE(held)", "0"),
    Mutation(RECORD, "if (PyList_GET_ITEM(object, i) != PyTuple_GET_ITEM(held, i))", "if (0)"),
    # Tensors, by their memory.
    Mutation(TENSOR, "&& Py_TYPE(tensor) == then->type && *noted", "&& *noted"),
    Mutation(
        TENSOR,
        "&& memcmp(noted->impl + memory.at, words + noted->words_at, (size_t)memory.size) == 0",
        "&& words != NULL",
    ),
    Mutation(TENSOR, "&& impl_of(tensor) == noted->impl\n", "\n"),
    Mutation(TENSOR, "&& memory.requires_grad(noted->impl) == then->requires_grad;", ";"),
    Mutation(
        "hit/csrc/torch_api.c",
        "(*count == 0 || (view->sizes == count + 1 && view->strides == count",
        "(*count >= 0 || (view->strides == count",
    ),
    # Tensors, by what torch shows.
    Mutation(TENSOR, "return now->type == then->type && now->names", "return now->names"),
    Mutation(TENSOR, "&& now->keyset == then->keyset", ""),
    Mutation(TENSOR, "&& now->requires_grad == then->requires_grad", ""),
    Mutation(TENSOR, "&& ndim == then->view.ndim", ""),
    Mutation(TENSOR, "&& memcmp(&now->view.dtype, &then->view.dtype, sizeof now->view.dtype) == 0", ""),
    Mutation(TENSOR, "&& same_numbers(now->view.sizes, numbers, ndim)", ""),
    Mutation(TENSOR, "&& same_numbers(now->view.strides, numbers + ndim, ndim);", ";"),
    # The state of the dispatcher, and what is no part of the instance.
    Mutation(ALL, "|| !is_usual_state(set))", "|| !(is_usual_state(set) | 1))"),
    Mutation(ALL, "if (hold != 1 || set->tree == NULL)", "if (set->tree == NULL)"),
    Mutation(ALL, "        if (holds != 1)\n", "        if (holds < 0)\n", (GUARDS, CODE, SET)),
    # What globals lead to.
    Mutation(NAMES, "now == seen->value && ", "", (NAMED,)),
    Mutation(NAMES, "(Py_TYPE(seen->value) == seen->type\n", "(seen->type != NULL\n", (NAMED,)),
    Mutation(NAMES, "PyFunction_GET_CODE(seen->value) == seen->held", "seen->held != NULL", (NAMED,)),
    Mutation(NAMES, "seen->held = Py_NewRef(seen->value);", "seen->held = Py_NewRef(Py_None);", (NAMED,)),
    Mutation(NAMES, " && !PyCFunction_CheckExact(seen->value)", "", (NAMED,)),
    Mutation(NAMES, "        return !is_read(tree);\n", "        return 1;\n", (NAMED,)),
    Mutation(NAMES, "return is_leaf(tree) && !is_read(tree);", "return is_leaf(tree);", (NAMED,)),
    Mutation(NAMES, "if (way(tree, i) != CODE_OF || ", "if (", (NAMED,)),
    Mutation(NAMES, "PendingNames *next = is_read(tree) ? NULL : append(", "PendingNames *next = append(", (NAMED,)),
    Mutation(NAMES, "if (way(from.tree, i) != from.by || ", "if (", (NAMED,)),
    Mutation(
        NAMES, "(from.by == ATTRIBUTE && class_attribute(&PyModule_Type, key) != NULL)\n            || ", "", (NAMED,)
    ),
    Mutation(NAMES, "&& dict_unchanged(dict, place->mark, place->count);", ";", (NAMED,)),
    Mutation(NAMES, "&& place->dict == dict\n", "\n", (NAMED,), watchers=True),
    Mutation(NAMES, "(BY_WATCHER && place->holder < 0)", "0", (NAMED,), watchers=True),
    Mutation(NAMES, "return PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_IMMUTABLETYPE) && ", "return ", (NAMED,)),
    Mutation(NAMES, "_IMMUTABLETYPE) && !PyFunction_Check(value)\n", "_IMMUTABLETYPE)\n", (NAMED,)),
    Mutation(NAMES, "        && !PyModule_Check(value);", ";", (NAMED,)),
    Mutation(NAMES, "return Py_IS_TYPE(value, &PyModule_Type) ?", "return PyModule_Check(value) ?", (NAMED,)),
    Mutation(NAMES, "&& names_unchanged(&names, guards->globals);", ";", (NAMED,)),
    Mutation(NAMES, "return PyObject_CallNoArgs(guards->state);", "Py_RETURN_TRUE;", (NAMED,)),
    Mutation(NAMES, "else if (hold == 1) {", "else if (hold >= 0) {", (NAMED,)),
    Mutation(FILTER, "_kinds(others) <= OF_NO_LOCAL and not", "not"),
    Mutation(FILTER, "_texts(state) == _texts(others) and not", "not"),
    Mutation(FILTER, "            or not _is_all_but_locals(root, others)\n", ""),
    Mutation(FILTER, "if [_noted(text) for text in texts] != [noted]:", "if False:"),
    Mutation(FILTER, "or torch._C._len_torch_function_stack() != 0:", ":"),
    # The state around a call, asked of torch's libraries.
    Mutation("hit/symbols.py", "if _agree(name, read, given[name])]", "]", (SYMBOLS,)),
    Mutation("hit/symbols.py", "return found == (", "return True or (", (SYMBOLS,)),
    Mutation("hit/symbols.py", "and found < _MOST_NUMBERS", "", (SYMBOLS,)),
    Mutation("hit/symbols.py", "            if any_autocast():\n", "            if True:\n", (SYMBOLS,)),
    Mutation("hit/native.py", '[] if private.newer("torch") else ', "", (SYMBOLS,)),
    Mutation(QUESTIONS, "return ends[0] != ends[1];", "return ends == NULL;", (SYMBOLS,)),
    Mutation(QUESTIONS, "return deque[2] != deque[6];", "return deque == NULL;", (SYMBOLS,)),
    Mutation(QUESTIONS, "    return *variable;\n", "    return variable == NULL;\n", (SYMBOLS,)),
    Mutation(QUESTIONS, "symbol->read(symbol) != state->words[i]", "state->count < 0", (GUARDS,)),
    Mutation(QUESTIONS, "state->count = count;", "state->count = 1;", (GUARDS,)),
    Mutation(
        QUESTIONS,
        "if (symbol == NULL || symbol->read(symbol) !=",
        "if (symbol != NULL && symbol->read(symbol) !=",
        (GUARDS,),
    ),
    Mutation(FILTER, "or torch._C._len_torch_function_stack() != 0:", ":"),
    # The state around a call, asked of torch's libraries.
    Mutation("hit/symbols.py", "if _agree(name, read, given[name])]", "]", (SYMBOLS,)),
    Mutation("hit/symbols.py", "return found == (", "return True or (", (SYMBOLS,)),
    Mutation("hit/symbols.py", "and found < _MOST_NUMBERS", "", (SYMBOLS,)),
    Mutation("hit/symbols.py", "            if any_autocast():\n", "            if True:\n", (SYMBOLS,)),
    Mutation("hit/native.py", '[] if private.newer("torch") else ', "", (SYMBOLS,)),
    Mutation(QUESTIONS, "return ends[0] != ends[1];", "return ends == NULL;", (SYMBOLS,)),
    Mutation(QUESTIONS, "return deque[2] != deque[6];", "return deque == NULL;", (SYMBOLS,)),
    Mutation(QUESTIONS, "    return *variable;\n", "    return variable == NULL;\n", (SYMBOLS,)),
    Mutation(FILTER, "or torch.cuda.is_available():", ":", (GUARDS,)),
    Mutation(FILTER, "not noted.keys() <= _HELD | _OF_FUNCTIONS | _OF_GPUS or ", "", (GUARDS,)),
    Mutation("hit/native.py", " and not symbols.are_left_out(keys, module)", " and False", (SYMBOLS,)),
    Mutation(
        SIGNED, "self == NULL || PyModule_Check(self) || PyType_Check(self)", "self == NULL || self != NULL", (SIGNS,)
    ),
    Mutation(SIGNED, "(any ? sign_item(sig, item) :", "(any ? 1 :", ("tests/test_sound_arguments.py",)),
    Mutation(SIGNED, "type->tp_iter == PyTuple_Type.tp_iter", "type->tp_iter != NULL", (SIGNS,)),
    Mutation(SIGNED, "&& type->tp_dictoffset == 0", "", (SIGNS,)),
    Mutation(SIGNED, "!has_its_fields(fields, dict)", "has_its_fields(fields, dict) < 0", (SIGNS,)),
    Mutation(SIGNED, "        if (field != name)\n", "        if (0)\n", (SIGNS,)),
    Mutation(SIGNED, "PyDict_GET_SIZE(fields) != PyDict_GET_SIZE(dict)", "0", (SIGNS,)),
    Mutation(SIGNED, "is_computed(type, name) || !sign_equal", "is_computed(type, name) < 0 || !sign_equal", (SIGNS,)),
    Mutation("hit/csrc/instance_signature.c", "has_version(type, *seen)", "*seen != 0", (SIGNS,)),
    Mutation("hit/csrc/instance_signature.c", "*seen = none ? version : 0;", "*seen = version;", (SIGNS,)),
    Mutation("hit/csrc/call_signature.c", "if (sig->words[sig->word_count - 1] != 1)", "if (0)", (SIGNS,)),
    Mutation("hit/csrc/call_signature.c", "(PyObject *)Py_TYPE(mode) == torch.device_context", "1", (SIGNS,)),
    Mutation("hit/csrc/call_signature.c", " && sign_equal(sig, device);", ";", (SIGNS,)),
    Mutation("hit/csrc/tensor_view.c", "times > FEW_UNSHOWN && ", "0 && ", (SIGNS, "-k", "not_asked")),
    Mutation("dispatch/dispatcher.py", "to_spare = self.fast_path.to_pass = 0", "to_spare = 9", (NUMBERS,)),
    Mutation("hit/csrc/function_call.c", " || (path->most_sights > 0) != firsts", "", (NUMBERS,)),
    Mutation(
        "hit/csrc/function_call.c",
        "(firsts && !is_first_sight(&path->sights, path->most_sights, node->hash))",
        "0",
        (NUMBERS,),
    ),
    Mutation("hit/csrc/function_call.c", "path->to_pass > 0 && may_vary()", "may_vary()", (NEWCOMERS,)),
    Mutation("hit/csrc/function_call.c", "(*node)->slot != NULL && path->left > 0", "path->left > 0", (NUMBERS,)),
    Mutation("hit/csrc/call_samples.c", "is_first ? now_ns() - began_ns : 0", "0", ("tests/hit/test_pooled_call.py",)),
    Mutation(
        "hit/csrc/kernel_call.c",
        "\n        || !find_slot(path, launch) ",
        "\n        || (path->base.left > 0 && --path->base.left == 0) || !find_slot(path, launch) ",
        (LAUNCHES,),
    ),
    Mutation("hit/csrc/function_call.c", "!may_vary() || (firsts", "(firsts", (NUMBERS,)),
    Mutation("hit/csrc/function_call.c", "path->to_pass > 0 && may_vary() &&", "path->to_pass > 0 &&", (NEWCOMERS,)),
    Mutation("online/repeats.py", " or torch.are_deterministic_algorithms_enabled()", "", (LAUNCHES,)),
    Mutation("online/repeats.py", "self._kin.get(family_of(key))", "[*self._kin.values(), None][0]", (LAUNCHES,)),
    Mutation("kernels/backend.py", "return config if config in left else", "return config if config else", (LAUNCHES,)),
    Mutation("online/repeats.py", "self.left <= 0 or key in self._sights", "self.left <= 0", (LAUNCHES,)),
    Mutation("online/repeats.py", "self._seldom or self._full", "self._seldom", (NUMBERS,)),
    Mutation("online/repeats.py", ">= self._most_sights()", ">= MOST_SIGHTS", (LAUNCHES,)),
    Mutation("online/repeats.py", "2 * (left - self._left) >", "2 * left >", (NUMBERS,)),
    Mutation(CACHE, "(uint64_t)(most - 1)", "(uint64_t)(MOST_SIGHTS - 1)", (NUMBERS,)),
    Mutation(
        "dispatch/dispatcher.py",
        "self.table.clear()\n        self.new_sizes.left = 0",
        "self.table.clear()",
        (LAUNCHES,),
    ),
    Mutation("dispatch/dispatcher.py", "to_pass = 0\n        self.new_sizes.left = 0", "to_pass = 0", (LAUNCHES,)),
    Mutation(
        "dispatch/newcomers.py", "self.found if self._may_run(args, kwargs) else None", "self.found", (NEWCOMERS,)
    ),
    Mutation("keys/signature.py", "_parameters(fn.__code__) != _parameters(", "False and (", (BOUND,)),
    Mutation("hit/csrc/cpython_api.c", "&& dict_unchanged(names, seen->mark, seen->count))", ")", (SIGNS,)),
    Mutation(CACHE, "vacate(cache, place);\n    cache->latest = NULL;\n", "vacate(cache, place);\n", (SIGNS,)),
    Mutation(CACHE, "cache->held = 0;\n    cache->latest = NULL;\n", "cache->held = 0;\n", (SIGNS,)),
    Mutation(CACHE, "if (node == NULL || !is_signed_so(node, sig)) {", "if (node == NULL) {", (SIGNS,)),
    # Classes and functions that were traced.
    Mutation(
        ALL, "all_live(guard) && classes_unchanged(guard) && ", "(classes_unchanged(guard) | 1) && ", (GUARDS, CODE)
    ),
    Mutation(ALL, "&& functions_unchanged(guard))", "&& (functions_unchanged(guard) | 1))", (GUARDS, CODE)),
    # What Dynamo does not guard: an attribute before a parameter, a buffer, a submodule.
    Mutation(FILTER, "args[0].extend(_on_shadows(args[0]))", "pass"),
    # Plain, which looks at the state now and then.
    Mutation("hit/call.py", "holds = self.look(args, kwargs)", "holds = True", (CALL,)),
    Mutation(NAMES, "    counted->left--;\n", "", (CALL,)),
    Mutation(NAMES, "counted->left > 0", "1", (CALL,)),
    Mutation(NAMES, "if (hold || counted->doubted)", "if (hold)", (CALL,)),
    Mutation(NAMES, "counted->doubted = !hold && !counted->doubted;", "", (CALL,)),
    # Where inputs begin.
    Mutation(GRAPH, "return ((uintptr_t)data & 15) == 0;", "return 1;", (ALIGNED,)),
    Mutation(GRAPH, "|| !begins_aligned(PyList_GET_ITEM(inputs, place))", "", (ALIGNED,)),
    Mutation(GRAPH, "place >= PyList_GET_SIZE(inputs) || ", "", (ALIGNED,)),
    Mutation(GRAPH, " && PyList_CheckExact(given[0])", "", (ALIGNED,)),
    Mutation(INDUCTOR, 'kwargs["static_input_idxs"] = ()', "pass", (BUILT,)),
    Mutation("functions/compile/code.py", 'inside["model"], run,', 'inside["model"], inside["model"],', (BUILT,)),
    # Random numbers that a build draws.
    Mutation("hit/call.py", "            raise Misaligned(COPIED_FIRST)\n", "            pass\n", (CALL,)),
    Mutation(DRAWS, " or not _equal(after, states())", "", (OF_DRAWS,)),
    Mutation(DRAWS, "before = states()  #", "before = begun  #", (OF_DRAWS,)),
    Mutation("functions/checks/graph_check.py", "wrong or self._drawn_elsewhere(others)", "wrong", (OF_DRAWS,)),
    # A graph past its wrappers.
    Mutation(GRAPH, "PyList_GET_SIZE(graph->found) == 1 && ", "", (WRAPPERS,)),
    Mutation(GRAPH, " && PyList_GET_ITEM(graph->found, 0) != Py_None", "", (WRAPPERS,)),
    Mutation(GRAPH, "torch.profiler_enabled, 1, &profiling", "torch.profiler_enabled, 2, &profiling", (WRAPPERS,)),
    Mutation("functions/compile/inductor.py", '"serialize", None), trusted', '"serialize", None), True', (WRAPPERS,)),
    Mutation(GRAPH, " && grad == 0;", ";", (WRAPPERS,)),
    Mutation(GRAPH, "graph->written ? beneath.keys : 0", "beneath.keys", (WRAPPERS,)),
    Mutation(GRAPH, "        beneath.leave(guard);\n", "        (void)guard;\n", (WRAPPERS,)),
    # A step past AOTAutograd's.
    Mutation("hit/call.py", "apply is None or not torch.is_grad_enabled() or profiling", "profiling", (STEPS,)),
    Mutation("hit/call.py", "not torch.is_grad_enabled() or profiling.state._is_profiler_enabled:", "0:", (STEPS,)),
    Mutation("hit/call.py", "inputs, made[kept], made[:results])", "inputs, made[:0], ())", (STEPS,)),
    Mutation("backward.py", "not (one.requires_grad and one.is_leaf) or", "", (AGAIN,)),
    Mutation("backward.py", "not (one.requires_grad and one.is_leaf) or", "not one.is_leaf or", (AGAIN,)),
    Mutation(AGAIN_OF, "without_history(kept, first.given)", "kept", (AGAIN,)),
    Mutation(JOINT, "            given = without_history(given, places)\n", "", (AGAIN,)),
    Mutation(JOINT, "saved if self.noted is None else self.noted.inputs(", "saved if True else (", (AGAIN,)),
    Mutation(ANEW, "            if leaf is not leaf_of:", "            if False:", (AGAIN,)),
    Mutation(JOINT, "one.detach().requires_grad_() if has_gradient else one", "one", (OF_JOINT,)),
    Mutation(NOTED, ' and not hasattr(before, "variable")', "", (AGAIN,)),
    Mutation(NOTED, " and not one.requires_grad:", " and False:", (AGAIN,)),
    Mutation(NOTED, "before is None and one.requires_grad", "False", (AGAIN,)),
    Mutation(NOTED, "one.requires_grad and torch.is_grad_enabled()", "one.requires_grad", (AGAIN,)),
    Mutation("hit/call.py", " or is_lazy(gradient):", ":", (STEPS,)),
    Mutation("functions/compile/autograd.py", "if any(map(is_lazy, gradients)):", "if False:", (STEPS,)),
    Mutation(JOINT, "        if state.again is None:", "        if True:", (AGAIN,)),
    Mutation(PARTIAL, "            self._ask()\n", "            pass\n", (OF_PARTIAL,)),
    Mutation(PARTIAL, "        self.made.watch(tensors(answer))\n", "", (OF_PARTIAL,)),
    Mutation(PARTIAL, "(*self.watched, own)[-RECENT:]", "(own,)", (OF_PARTIAL,)),
    Mutation(PROGRAM, "self.backwards >= BACKWARDS or ", "", (OF_PROGRAM,)),
    Mutation(PROGRAM, "BACKWARDS, MOST_CALLS = 4, 64", "BACKWARDS, MOST_CALLS = 1, 64", (OF_PROGRAM,)),
    Mutation(PROGRAM, " or self.calls >= MOST_CALLS", "", (OF_PROGRAM,)),
    Mutation(PROGRAM, "(number := running()) != self._backward:", "(number := running()) > -9:", (OF_PROGRAM,)),
    Mutation(PROGRAM, "        elif made is not self._answer():", "        else:", (OF_PROGRAM,)),
    Mutation(PROGRAM, "        self.tracked |= tracked.now()\n", "", (OF_PROGRAM,)),
    Mutation(PARTIAL, "not self.repeats and (", "(", (OF_PROGRAM,)),
    Mutation(PARTIAL, "            yield TRACKED", "            yield from ()", (OF_PROGRAM,)),
    Mutation(PARTIAL, " or self._is_tracked()) or", ") or", (OF_PROGRAM,)),
    Mutation(AGAIN_OF, "            self.partial.tracked, self.partial.repeats = True, False\n", "", (OF_PROGRAM,)),
    Mutation("functions/compile/artifact.py", "if code.repeats else", "if code.computes else", (REMOTE_BUILD,)),
    Mutation(
        "functions/compile/code.py", "        self.computes = all(one.computes for one in parts)\n", "", (OF_PROGRAM,)
    ),
    Mutation("choices/sampling.py", "        if self._is_unseen():", "        if False:", (OF_PROGRAM,)),
    Mutation("choices/watch.py", 'self.drift.winner == "plain" and ', "", (WATCHED,)),
    Mutation(PARTIAL, "        self._memory.update(made)\n", "", (OF_PARTIAL,)),
    Mutation(PARTIAL, " if storage_of(kept[place]) not in self._memory)", ")", (OF_PARTIAL,)),
    Mutation(PARTIAL, " and one.layout is strided", "", (OF_PARTIAL,)),
    Mutation(PARTIAL, "(one is count or one.grad_fn is not None)", "True", (OF_PARTIAL,)),
    Mutation(PARTIAL, "if not (one.requires_grad and one.is_leaf))", ")", (OF_PARTIAL,)),
    Mutation(PARTIAL, "    count.data = given.new_empty(0)\n", "", (OF_PARTIAL,)),
    Mutation(PARTIAL, "self.written and self.kept is not False", "self.written", (OF_PARTIAL,)),
    Mutation(PARTIAL, "            self.raised = True\n", "", (OF_PARTIAL,)),
    Mutation(PARTIAL, '        if "inplace" in str(error):', "        if True:", (OF_PARTIAL,)),
    Mutation(
        "functions/builder.py",
        "        if why := why_no_backward(call, memory):",
        "        if why := None:",
        (OF_PARTIAL,),
    ),
    Mutation(
        "choices/sampling.py",
        "            program.plain_ran((args, kwargs), answer)",
        "            pass",
        (OF_PARTIAL,),
    ),
    Mutation(NOTED, "            before.let_go()", "            pass", (AGAIN,)),
    Mutation("hit/call.py", "not (alone() and all(", "not (all(", (STEPS,)),
    Mutation("hit/call.py", "alone() and all(map(lies_as, gradients, layouts))", "alone()", (STEPS,)),
    Mutation("hit/call.py", "again.is_tracked() or not (", "not (", (AGAIN,)),
    Mutation(AGAIN_OF, "return noted if keeps_graph() else None", "return noted", (AGAIN,)),
    Mutation(NOTED, "        if tensor._version != version:", "        if False:", (AGAIN,)),
    Mutation(AGAIN_OF, "map(alias_of, inputs)", "inputs", (AGAIN,)),
    Mutation(AGAIN_OF, "torch.get_default_dtype() != first.dtype", "False", (AGAIN,)),
    Mutation(AGAIN_OF, "casting(first.casts), ", "", (AGAIN,)),
    Mutation(AGAIN_OF, "range(len(inputs)) if tracked.ever else first.held", "first.held", (AGAIN,)),
    Mutation("functions/compile/code.py", "self.computes and not self.draws", "self.computes", (AGAIN,)),
    Mutation(JOINT, "call.again if tracked.now() else call.gradients", "call.gradients", (OF_JOINT,)),
    Mutation("hit/call.py", " or dynamo_callback() is not None)", ")", (STEPS,)),
    Mutation("hit/call.py", "            gradients.clear()", "            pass", (STEPS,)),
    Mutation("hit/call.py", "            ctx.maybe_clear_saved_tensors()\n", "", (STEPS,)),
    Mutation("hit/call.py", 'stashed("context") if is_stashed("context") else None', "None", (STEPS,)),
    Mutation(
        "hit/call.py",
        "    if type(gradient) is not torch.Tensor or is_lazy(gradient):\n        return False\n",
        "",
        (STEPS,),
    ),
    Mutation("hit/call.py", "gradient.shape == size and ", "", (STEPS,)),
    Mutation("hit/call.py", " and gradient.stride() == stride", "", (STEPS,)),
    Mutation(INDUCTOR, "    if not torch.is_grad_enabled():\n        return whole(*inputs)\n", "", (STEPS,)),
    Mutation(INDUCTOR, "of is not None and len(seen) == 1 and", "of is not None and", (STEPS,)),
    Mutation(INDUCTOR, "of is not None and len(seen) == 1 and _same(seen[0][0], inputs)", "of is not None", (STEPS,)),
    Mutation(INDUCTOR, "if _same(made, outputs) else None", "", (STEPS,)),
    Mutation(INDUCTOR, '_forward_cls", None) if len(nodes) == 1 else None', '_forward_cls", None)', (STEPS,)),
    Mutation(INDUCTOR, "of_parts and boxed", "boxed", (STEPS,)),
    Mutation(INDUCTOR, "of_parts and boxed and", "of_parts and", (STEPS,)),
    Mutation(INDUCTOR, "not any(more) and", "", (STEPS,)),
    Mutation(INDUCTOR, " and set(counts) == {len(outputs)}", "", (STEPS,)),
    # What is written, and what is read that is no argument.
    Mutation(MEMORY, "any(start < high and low", "any(False and start < high and low", (APART,)),
    Mutation(BUILD, "return or_plain(self.with_graph(apart(", "return (self.with_graph(apart(", (APART,)),
    # What plain launches, recorded.
    Mutation(OPERATORS, "if indexes and _counts_a_mask(args):", "if False:", (OF_OPERATORS,)),
    Mutation(OPERATORS, "if len(self.devices) > 1:", "if False:", (OF_OPERATORS,)),
    Mutation(OPERATORS, "if kind is None and not self.launched:", "if False:", (OF_OPERATORS,)),
    Mutation(
        OPERATORS,
        "if not told and not only_makes_views(target) and target._opname not in _KNOWN:",
        "if False:",
        (OF_OPERATORS,),
    ),
    Mutation(RECORDED, "if isinstance(build, TracedBuild) and any_autocast():", "if False:", (OF_PLAIN,)),
    Mutation(
        RECORDED,
        "OnlyKnown if isinstance(build, TracedBuild) else contextlib.nullcontext",
        "contextlib.nullcontext",
        (OF_PLAIN,),
    ),
    Mutation(RECORDED, "check=build.check(), build=slot", "check=None, build=slot", (OF_PLAIN,)),
    # Several results with one backward.
    Mutation(JOINT, "if self._reaches_all(given) else", "if True else", (OF_JOINT,)),
    Mutation(JOINT, "reached.update(self.form.others[number])", "pass", (OF_INNER,)),
    Mutation(JOINT, "return self.hooked or asked_for", "return asked_for", (OF_INNER,)),
    Mutation(JOINT, "not (_will_run(self.probe[1]) or is_for_leaves())", "False", (OF_INNER,)),
    Mutation(JOINT, " or is_for_leaves())", ")", (OF_INNER,)),
    Mutation(JOINT, "one is not None and one.retains_grad for one in kept", "False for one in kept", (OF_INNER,)),
    Mutation(JOINT, '"_register_hook_dict", ', "", (OF_INNER,)),
    Mutation(JOINT, '"register_hook", ', "", (OF_INNER,)),
    Mutation(JOINT, ', "register_prehook"', "", (OF_INNER,)),
    Mutation(JOINT, "|= self.number in self.call.form.inner and", "|=", (OF_INNER,)),
    Mutation(JOINT, " and not is_blind(hook)", "", (OF_INNER,)),
    Mutation(JOINT, "return SEEN if all(", "return BEGUN if all(", (OF_INNER,)),
    Mutation(ANEW, "self.leaf(self.behind.get(number, value))", "value", (OF_INNER,)),
    Mutation(ANEW, "in reversed(range(len(self.results)))", "in range(len(self.results))", (OF_INNER,)),
    Mutation(CUT, "if inner * LARGE > sum(", "if False and sum(", (OF_INNER,)),
    Mutation(
        "backward.py",
        "weakref.WeakValueDictionary[int, _Ours]()",
        "dict[int, _Ours]()",
        ("tests/test_backward.py",),
    ),
    Mutation(PARTIAL, "_is_tracked()) or _is_called_again()", "_is_tracked())", (OF_JOINT,)),
    Mutation(
        JOINT, "torch.inference_mode(False), torch.enable_grad(), casting", "torch.enable_grad(), casting", (OF_JOINT,)
    ),
    Mutation(JOINT, "casting(self.form.casts), self.form.device, _", "self.form.device, _", (OF_JOINT,)),
    Mutation(JOINT, "self.form.device, _unhooked()", "_unhooked()", (OF_JOINT,)),
    Mutation(JOINT, "self.form.device, _unhooked()", "self.form.device", (OF_JOINT,)),
    Mutation(JOINT, "        if not given:\n            return nothing\n", "", (OF_JOINT,)),
    Mutation(JOINT, "if self.memory and self.memory != ", "if False and self.memory != ", (OF_JOINT,)),
    Mutation(JOINT, "            self.view = self.kept = self.noted = None", "            pass", (OF_JOINT,)),
    Mutation(JOINT, "        ctx.saved_tensors  # noqa: B018", "        # noqa: B018", (OF_JOINT,)),
    Mutation(JOINT, 'torch.empty(0, dtype=torch.float32, device="cpu")', "tensors[0].new_empty(0)", (OF_JOINT,)),
    Mutation(JOINT, "_Begun] = weakref.WeakValueDictionary()", "_Begun] = {}", (OF_JOINT,)),
    Mutation(SOURCES, "(passes and one in ends)", "False", (OF_JOINT,)),
    Mutation(SOURCES, "if passes and not _passes_gradients(values[one]):", "if False:", (OF_CUT,)),
    Mutation(CUT, "if any(one != ends[0] for one in ends):", "if False:", (OF_CUT,)),
    Mutation(CUT, "and has_gradient(split.values[node]) and node not in taken:", "and False:", (OF_CUT,)),
    Mutation(CUT, "if len({split.values[node].device for node in made}) > 1:", "if False:", (OF_CUT,)),
    Mutation(CUT, "made.sort(key=self.place.__getitem__)", "pass", (OF_CUT,)),
    Mutation(CUT, "    for node in written:", "    for node in ():", (OF_CUT,)),
    Mutation(CUT, "if way is not Way.APART and ordered:", "if False:", (OF_JOINT,)),
    Mutation(
        "functions/compile/inductor.py", "if made_of is not None and not only_computes():", "if False:", (OF_JOINT,)
    ),
    Mutation(BUILD, "(partial.failed() if partial is not None else None)", "None", (OF_JOINT,)),
    Mutation("functions/builder.py", "if followed or known.get", "if known.get", (OF_JOINT,)),
    Mutation(
        "functions/remote_build.py",
        "        return inputs is not None and self.conditions.hold(inputs)\n",
        "        return inputs is not None\n",
        ("tests/functions/test_remote_build.py",),
    ),
    Mutation(
        "dispatch/background.py",
        "return self.run if no_poll else self._looked_for(args, kwargs)",
        "return self._looked_for(args, kwargs)",
        ("tests/dispatch/test_background.py",),
    ),
    Mutation(
        "dispatch/background.py",
        "self.polls_s and self.account.news == self.news",
        "self.polls_s",
        ("tests/dispatch/test_background.py",),
    ),
    Mutation("dispatch/background.py", ", tell=tell_news", "", ("tests/dispatch/test_background.py",)),
    Mutation("hit/csrc/timed_calls.c", " || calls->news != news", "", ("tests/hit/test_timed_calls.py",)),
    Mutation(
        "dispatch/background.py",
        "self.calls.begin(self.polls_s - self.spent_s)",
        "pass",
        ("tests/dispatch/test_background.py",),
    ),
    Mutation(
        "dispatch/background.py",
        "self.forced, self.polls_s = True, 0.0\n        self",
        "self.forced = True\n        self",
        ("tests/dispatch/test_background.py",),
    ),
    Mutation(
        "dispatch/background.py",
        "self.forced, self.polls_s = True, 0.0\n        self._note_calls()",
        "self.forced, self.polls_s = True, 0.0",
        ("tests/dispatch/test_background.py",),
    ),
    Mutation(
        "dispatch/background.py",
        "        self._note_calls()\n        run, began_s",
        "        run, began_s",
        ("tests/dispatch/test_background.py",),
    ),
    Mutation("dispatch/background.py", " or account.pays_offer(worth_s))", ")", ("tests/dispatch/test_background.py",)),
    Mutation(
        "choices/between.py",
        "_together(ctx, near.sizes) if near.agreed() is None else None",
        "_together(ctx, near.sizes)",
        ("tests/dispatch/test_background_neighbours.py",),
    ),
    Mutation(SENT_KERNEL, "if kernel.cache_key != self.digest:", "if False:", (OF_SENT_KERNEL,)),
    Mutation(
        SENT_KERNEL,
        "    kernel.raw_src, kernel.starting_line_number = list(one.lines), one.first_line\n",
        "",
        (OF_SENT_KERNEL,),
    ),
    Mutation(
        SENT_KERNEL,
        "    scope |= {name: _made(value, made) for name, value in others.items()}\n",
        "",
        (OF_SENT_KERNEL,),
    ),
    Mutation(
        "kernels/runtime/remote_compile.py",
        "    if not request.is_cached():",
        "    if False:",
        ("tests/kernels/test_remote_compile.py",),
    ),
    Mutation(ASKED, "    forget(kernel, future)\n", "", (OF_ASKED,)),
    Mutation(ASKED, "        mode.active_mode.reset(token)", "        pass", (OF_ASKED,)),
    Mutation(ASKED, "not knobs.compilation.always_compile and ", "", (OF_ASKED,)),
    Mutation("dispatch/miss.py", "        return kept_then(entry)", "        return ctx.kept(entry)", (LAUNCHES,)),
    Mutation("kernels/tuned_configs.py", "request=request, call=", "call=", (LAUNCHES,)),
    Mutation(
        CONFIGS,
        "ordered.get(request.cached_as)\n        if order is None or order.again",
        "ordered.get(self._known_here)\n        if order is None or order.again",
        (LAUNCHES,),
    ),
    Mutation(CONFIGS, "RequestResult(order.failed) if", "RequestResult(order.failed, False) if", (LAUNCHES,)),
    Mutation(CONFIGS, "        if time.perf_counter() > end_s:\n            break\n", "", (LAUNCHES,)),
    Mutation(CONFIGS, "        if known not in requests:\n", "        if True:\n", (LAUNCHES,)),
    Mutation("dispatch/miss.py", "if begun is not None and begun.holds(ctx) else None", "and None", (LAUNCHES,)),
    Mutation("dispatch/miss.py", "all(ctx.core.table.build(one) is not None for one in builds)", "True", (LAUNCHES,)),
    Mutation("dispatch/miss.py", "self.settings == ctx.settings and ", "", (LAUNCHES,)),
    Mutation("kernels/runtime/loaded.py", "told or effects_of(compiled)", "effects_of(compiled)", (LAUNCHES,)),
    Mutation("dispatch/launches.py", "self._spent(max(took_s, self.launch_s))", "self._spent(took_s)", (LAUNCHES,)),
    Mutation(
        "background/account.py",
        "if all(order.over for order in orders):",
        "if False:",
        ("tests/background/test_account.py",),
    ),
    Mutation(
        "functions/guards/object_guard.py",
        "return self._holds if self.constants else functools.partial(",
        "return functools.partial(",
        ("tests/functions/test_builtin_names.py",),
    ),
    Mutation(
        "functions/unseen/lookups.py",
        " or frame.f_code is _TYPE_HINTS",
        "",
        ("tests/functions/test_changed_worlds.py", "-k", "annotations"),
    ),
    # What is run to load code, and how much is asked for at once.
    Mutation(WARMUP, "            self._is_late = True\n", "", (OF_WARMUP,)),
    Mutation(WARMUP, "self._loaded.get(kinds, 0)", "0", (OF_WARMUP,)),
    Mutation(DIFFERENCE, "near = error < torch.add(", "near = error <= torch.add(", (OF_DIFFERENCE,)),
    Mutation(DIFFERENCE, "alpha=_AS_MUCH * rtol", "alpha=rtol", (OF_DIFFERENCE,)),
    Mutation(DIFFERENCE, "shares = sizes / torch.where(largest > 0, largest, 1.0)", "shares = sizes", (OF_DIFFERENCE,)),
    Mutation(DIFFERENCE, "    counted = finite & (small | ~filled)\n", "    counted = finite\n", (OF_DIFFERENCE,)),
    Mutation(
        DIFFERENCE, "    counted = finite & (small | ~filled)\n", "    counted = small | ~filled\n", (OF_DIFFERENCE,)
    ),
    Mutation(
        "autotune/trial.py", "first = 1 + (flat.numel() - 1) % lanes", "first = flat.numel() % lanes", (OF_TRIAL,)
    ),
    Mutation("online/pool.py", "self.near_share if self.pairs.is_empty() else ", "", ("tests/choices/test_pool.py",)),
    Mutation(
        "hit/native.py",
        "    c = in_use or module()  # each config",
        "    c = module()  # each config",
        (SIGNS, "-k", "decoration"),
    ),
    Mutation(
        "choices/learning.py",
        "                _warm_up(plain, trial, rules, looks)\n",
        "                pass\n",
        (LAUNCHES,),
    ),
    Mutation("choices/learning.py", " or len(found) >= most", "", (LAUNCHES,)),
    Mutation("choices/learning.py", "(False, True) if rules.permute else (False,)", "(False,)", (LAUNCHES,)),
    Mutation(
        "online/repeats.py",
        "min((self.counts_as - 1) * took_s, self._passed_s)",
        "(self.counts_as - 1) * took_s",
        (NUMBERS,),
    ),
    Mutation(
        "dispatch/shared_turns.py",
        "min(first_ns * self.core.new_sizes.counts_as, since_ns)",
        "first_ns * self.core.new_sizes.counts_as",
        ("tests/dispatch/test_shared_turns.py",),
    ),
    Mutation(
        "dispatch/background.py",
        "self.in_all_s(took_s), float",
        "self.in_all_s(took_s), self.in_all_s",
        ("tests/dispatch/test_background.py",),
    ),
    Mutation(CONFIGS, "or self._is_asked_later(wanted)", "", (LAUNCHES,)),
    Mutation(
        ACCURACY,
        "as_large = torch.ldexp(most[0, larger], (places - larger).to(most.dtype))",
        "as_large = most[0, larger]",
        (OF_ACCURACY,),
    ),
    Mutation(
        ACCURACY,
        "places, _SIZES - 1).flip(0).cummin(0).values.flip(0)",
        "places, 0).cummax(0).values",
        (OF_ACCURACY,),
    ),
    Mutation(ACCURACY, ">= _ENOUGH", ">= 2 * _ENOUGH", (OF_ACCURACY,)),
    Mutation(ACCURACY, "most, 3, 1, 1).view(-1), as_large)", "most, 3, 1, 1).view(-1), 0 * as_large)", (OF_ACCURACY,)),
    Mutation(ACCURACY, "RARELY if count <= _RARE * bad.numel() else 1", "1", (OF_ACCURACY,)),
    Mutation(ACCURACY, "RARELY if count <= _RARE * bad.numel() else 1", "RARELY", (OF_ACCURACY,)),
    Mutation("choices/learning.py", "not (wrong or other", "not (other", (LAUNCHES,)),
    Mutation("choices/learning.py", "if one.name in unsure] if permuted", "] if permuted", (LAUNCHES,)),
    Mutation("choices/learner.py", "_between: int = 1", "_between: int = BETWEEN", (TURNS,)),
    Mutation("online/contest.py", "min(FREE_US, small_us)", "FREE_US", ("tests/online/test_contest.py",)),
    Mutation("online/contest.py", "FREE_US if self._unready.begun else ", "", ("tests/online/test_contest.py",)),
    Mutation("online/contest.py", "        self._lost_us += self.sample_us\n", "", ("tests/online/test_contest.py",)),
    Mutation("online/contest.py", "(other.variant in later and ", "(", ("tests/online/test_contest.py",)),
    Mutation("online/getting_ready.py", "repaid >= REPAID or ", "", ("tests/online/test_contest.py",)),
    Mutation("choices/learner.py", "(self.contest.calls_until_next(), ", "(0, ", (TURNS,)),
    Mutation("autotune/flush.py", "if self.depth == 1 and ", "if ", ("tests/autotune/test_flush.py",)),
    Mutation(
        "functions/checks/graph_check.py",
        "inductors_timing(_on_gpu(inputs))",
        "contextlib.nullcontext()",
        ("tests/functions/test_graph_check.py",),
    ),
    Mutation(
        "online/contest.py",
        "max(1, min(after - self.rounds, MOST_AT_ONCE // len(self._running)))",
        "after - self.rounds",
        ("tests/online/test_contest.py",),
    ),
    Mutation(
        "online/drift.py",
        "        self._scattered = won is None and bool(faster)\n",
        "        self._scattered = False\n",
        ("tests/online/test_drift.py",),
    ),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Try those whose text is named by an argument, or all; the exit code is 1 where one is seen by no test."""
    wanted = sys.argv[1:] if arguments is None else arguments
    outcomes = []
    for mutation in MUTATIONS:
        here = mutation.watchers in (None, WATCHERS)
        if here and (not wanted or any(word in mutation.text for word in wanted)):
            outcome = tried(mutation)
            outcomes.append(outcome)
            print(f"{outcome:<12} {mutation.file}: {mutation.text.strip()}", flush=True)
    print(", ".join(f"{outcomes.count(outcome)} {outcome}" for outcome in dict.fromkeys(outcomes)))
    return int(set(outcomes) != {"red"})


def tried(mutation: Mutation) -> str:
    """``red``, ``NOT SEEN``, or what is wrong with the mutation."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        for part in ("shapedispatch", "tests", "benchmarks/__init__.py", "pyproject.toml"):
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
            elif (ROOT / part).exists():
                (copy / part).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(ROOT / part, copy / part)
        file = copy / "shapedispatch" / mutation.file
        text = file.read_text("utf-8")
        if text.count(mutation.text) != 1:
            return f"{text.count(mutation.text)} TIMES"
        file.write_text(text.replace(mutation.text, mutation.other), "utf-8")
        # In the package, too: tests that need the path in C are skipped where none is there.
        build = "from pathlib import Path; from tests.paths import compiled; compiled(Path('shapedispatch/hit'))"
        if not runs(copy, "-c", build):
            return "NO BUILD"
        tests = ("-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutation.tests)
        return "NOT SEEN" if runs(copy, *tests) else "red"


def runs(folder: Path, *command: str) -> bool:
    """Whether this Python ends well there, with the copy's package."""
    path = {"PYTHONPATH": str(folder)}
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=os.environ | path, capture_output=True, check=False
    )
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
