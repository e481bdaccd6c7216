/*
 * The hit path in C: the key of a call, the lookup, the run; and the launch of a compiled kernel.
 *
 * The law stands in keys/key.py and hit/call.py, the table in hit/table.py. These files must agree with them on every
 * call, and may always say that they cannot judge one: that call then takes the Python path. So nothing here raises for
 * a call that it does not understand, and deleting it changes no answer.
 *
 * A call is signed into words (sizes, strides, state) and a few immutable objects (strings, types), which are compared
 * in full: no hash decides anything. A `CacheNode` joins a signed call to the slot that the Python table keeps for the
 * same call. It gets one only where the Python path has found that slot, so a call that Python would refuse has none.
 *
 * Only Python's headers are used. What torch offers without headers is the DLPack exchange API (a table of C functions
 * in a capsule), the C shim of compiled models, the C functions behind its Python functions and attributes, which are
 * called directly, and a few functions of its libraries by what the linker calls them.
 *
 * One translation unit, in files that each stand on those before: so the compiler sees a hit whole.
 *
 * Everything runs under the GIL and relies on it: free-threaded Python is refused at import.
 */

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#ifndef _WIN32
#include <dlfcn.h>
#endif

#include "cpython_api.c"
#include "torch_questions.c"
#include "torch_api.c"
#include "tensor_view.c"
#include "call_signature.c"
#include "instance_signature.c"
#include "signature_cache.c"
#include "function_call.c"
#include "graph_call.c"
#include "guard_tree.c"
#include "instance_record.c"
#include "skipped_guards.c"
#include "code_guard.c"
#include "all_checks.c"
#include "hook_watch.c"
#include "kernel_signature.c"
#include "cuda_launch.c"
#include "launch_samples.c"
#include "call_samples.c"
#include "timed_calls.c"
#include "kernel_call.c"
#include "kernel_object.c"

PyDoc_STRVAR(sign_call_doc, "sign_call(args, kwargs, receiver, overlap, /)\n--\n\n"
    "A call as (bytes, objects): two calls with equal keys have equal ones. None where C cannot judge the call.");

static PyObject *sign_call_here(PyObject *Py_UNUSED(module), PyObject *const *call, Py_ssize_t count)
{
    if (count != 4)
        return PyErr_Format(PyExc_TypeError, "sign_call takes args, kwargs, receiver, overlap");
    CallSignature sig;
    if (!sign_call(&sig, call[0], call[1], call[2] == Py_True, call[3] == Py_True))
        Py_RETURN_NONE;
    PyObject *objects = PyTuple_New(sig.object_count);
    for (int i = 0; objects != NULL && i < sig.object_count; i++)
        PyTuple_SET_ITEM(objects, i, Py_NewRef(sig.objects[i]));
    drop_objects(&sig);
    return Py_BuildValue("y#N", (char *)sig.words, (Py_ssize_t)sig.word_count * 8, objects);
}

PyDoc_STRVAR(sign_value_doc, "sign_value(value, /)\n--\n\n"
    "One argument as bytes, without its objects; None where C cannot judge it.");

static PyObject *sign_value_here(PyObject *Py_UNUSED(module), PyObject *value)
{
    CallSignature sig = {.word_count = 0};
    int supported = torch.exchange != NULL && sign_value(&sig, value);
    drop_objects(&sig);
    if (supported)
        return PyBytes_FromStringAndSize((char *)sig.words, (Py_ssize_t)sig.word_count * 8);
    PyErr_Clear();
    Py_RETURN_NONE;
}

static PyMethodDef functions[] = {
    {"bind", bind, METH_O, bind_doc},
    {"read_symbol", read_symbol, METH_VARARGS, read_symbol_doc},
    {"use_symbols", use_symbols, METH_O, use_symbols_doc},
    {"calibrate", calibrate, METH_O, calibrate_doc},
    {"compare_memory", compare_memory, METH_O, compare_memory_doc},
    {"asks_shim", asks_shim, METH_NOARGS, asks_shim_doc},
    {"sign_call", (PyCFunction)(void (*)(void))sign_call_here, METH_FASTCALL, sign_call_doc},
    {"sign_value", sign_value_here, METH_O, sign_value_doc},
    {"use_driver", use_driver, METH_VARARGS, use_driver_doc},
    {"use_events", use_events, METH_VARARGS, use_events_doc},
    {"use_watchers", use_watchers, METH_O, use_watchers_doc},
    {"changed", changed, METH_O, changed_doc},
    {"dispatcher_state", dispatcher_state, METH_NOARGS, dispatcher_state_doc},
    {"function_state", function_state, METH_NOARGS, function_state_doc},
    {"leave_out", leave_out, METH_O, leave_out_doc},
    {"tell_news", tell_news, METH_NOARGS, tell_news_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "shapedispatch.hit._native",
    .m_doc = "The hit path in C; see native.py.",
    .m_size = -1,
    .m_methods = functions,
};

static int intern_names(void)
{
    static const struct {
        const char *text;
        PyObject **place;
    } names[] = {
        {"_is_compiling_flag", &torch.is_compiling_flag},
        {"_current_level", &torch.current_level},
        {"raw_repr", &torch.raw_repr},
        {"fill_uninitialized_memory", &torch.fill_memory},
        {"device", &torch.device_name},
        {"__dataclass_fields__", &torch.dataclass_fields},
        {"_fields", &torch.fields},
        {"calls", &torch.calls},
        {"value", &torch.value},
        {"_called", &torch.called},
        {"_launched", &torch.launched},
        {"__getattribute__", &torch.getattribute},
        {"_is_profiler_enabled", &torch.profiler_enabled},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((*names[i].place = PyUnicode_InternFromString(names[i].text)) == NULL)
            return 0;
    return 1;
}

PyMODINIT_FUNC PyInit__native(void)
{
#ifdef Py_GIL_DISABLED
    return PyErr_Format(PyExc_ImportError,
        "shapedispatch's C path relies on the GIL, which this Python is built without");
#endif
    if (sizeof(void *) != sizeof(uint64_t))
        return PyErr_Format(PyExc_ImportError, "shapedispatch's C path is written for 64-bit processors");
    PyTypeObject *types[] = {&FastPathType, &CacheNodeType, &CudaLauncherType, &LaunchTurnsType, &CallTurnsType,
        &PoolLeaderType, &PooledCallType, &TimedCallsType, &KeySchemaType, &CodeGuardType, &AllChecksType,
        &GlobalGuardsType, &CountdownType, &GuardSetType, &GridBoundType, &KernelObjectType, &KernelFastPathType,
        &ThreadStateType, &GraphCallType, &AlignedCodeType};
    PyObject *module = intern_names() ? PyModule_Create(&definition) : NULL;
    for (size_t i = 0; module != NULL && i < sizeof types / sizeof *types; i++)
        if (PyModule_AddType(module, types[i]) < 0)     /* which readies it */
            Py_CLEAR(module);
    return module;
}
