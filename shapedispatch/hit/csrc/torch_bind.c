/* Taking from torch what `torch_api.h` declares. */

/* ---------------------------------------------------------------------------------------- the module: binding torch */

/* A name that must be among those given, borrowed. NULL with an error set. */
static PyObject *given(PyObject *names, const char *name)
{
    PyObject *value = PyDict_GetItemString(names, name);
    if (value == NULL)
        PyErr_Format(PyExc_TypeError, "%s is not given", name);
    return value;
}

static int bind_object(PyObject *names, const char *name, PyTypeObject *type, PyObject **place)
{
    PyObject *value = given(names, name);
    if (value == NULL)
        return 0;
    if (!PyObject_TypeCheck(value, type)) {
        PyErr_Format(PyExc_TypeError, "%s is no %s", name, type->tp_name);
        return 0;
    }
    Py_XSETREF(*place, Py_NewRef(value));
    return 1;
}

static int bind_type(PyObject *names, const char *name, PyTypeObject **place)
{
    PyObject *value = given(names, name);
    if (value == NULL)
        return 0;
    if (!PyType_Check(value)) {
        PyErr_Format(PyExc_TypeError, "%s is no type", name);
        return 0;
    }
    Py_XSETREF(*place, (PyTypeObject *)Py_NewRef(value));
    return 1;
}

/* The C function behind an attribute of tensors. */
static int bind_attribute(PyObject *names, const char *name, PyGetSetDef **place)
{
    PyObject *value = given(names, name);
    if (value == NULL)
        return 0;
    if (Py_TYPE(value) != &PyGetSetDescr_Type || !PyType_IsSubtype(torch.tensor, PyDescr_TYPE(value))) {
        PyErr_Format(PyExc_TypeError, "%s is no attribute of tensors that is written in C", name);
        return 0;
    }
    *place = ((PyGetSetDescrObject *)Py_NewRef(value))->d_getset;
    return 1;
}

static int is_tuple_of_some(PyObject *value, const char *name)
{
    if (PyTuple_CheckExact(value) && PyTuple_GET_SIZE(value) > 0)
        return 1;
    PyErr_Format(PyExc_TypeError, "%s is no tuple, or an empty one", name);
    return 0;
}

static int take_question(PyObject *question, const char *name, Probe *probe)
{
    if (!is_tuple_of_some(question, name))
        return 0;
    Py_XSETREF(probe->question, Py_NewRef(question));
    PyObject *function = PyTuple_GET_ITEM(question, 0);
    int direct = PyTuple_GET_SIZE(question) == 1 && PyCFunction_CheckExact(function)
        && PyCFunction_GET_FLAGS(function) == METH_NOARGS;
    probe->direct = direct ? PyCFunction_GET_FUNCTION(function) : NULL;
    probe->self = direct ? PyCFunction_GET_SELF(function) : NULL;
    return 1;
}

static int bind_probe(PyObject *names, const char *name, Probe *probe)
{
    PyObject *value = given(names, name);
    return value != NULL && take_question(value, name, probe);
}

static int bind_probes(PyObject *names, const char *name, Probes *probes)
{
    PyObject *value = given(names, name);
    if (value == NULL || !is_tuple_of_some(value, name))
        return 0;
    probes->count = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value) && i < MOST_PROBES; i++, probes->count++)
        if (!take_question(PyTuple_GET_ITEM(value, i), name, &probes->probes[i]))
            return 0;
    if (probes->count == PyTuple_GET_SIZE(value))
        return 1;
    PyErr_Format(PyExc_TypeError, "%s holds more than %d questions", name, MOST_PROBES);
    return 0;
}

static int bind_exchange(PyObject *names)
{
    PyObject *capsule = given(names, "exchange");
    const Exchange *exchange = capsule == NULL ? NULL : PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (exchange == NULL)
        return 0;
    if (exchange->header.major != 1 || exchange->view_of == NULL) {
        PyErr_Format(PyExc_TypeError, "version %u.%u of the DLPack exchange API%s", exchange->header.major,
            exchange->header.minor, exchange->view_of == NULL ? ", without views" : "");
        return 0;
    }
    torch.exchange = exchange;
    return 1;
}

static int bind_state(PyObject *names)
{
    return bind_probes(names, "no_modes", &torch.no_modes) && bind_probes(names, "keyed", &torch.keyed)
        && bind_probe(names, "any_autocast", &torch.any_autocast)
        && bind_probe(names, "autocast_cache", &torch.autocast_cache)
        && bind_probe(names, "deterministic", &torch.deterministic)
        && bind_probe(names, "warn_only", &torch.warn_only)
        && bind_object(names, "autocast_devices", &PyTuple_Type, &torch.autocast_devices)
        && bind_object(names, "autocast_enabled", &PyBaseObject_Type, &torch.autocast_enabled)
        && bind_object(names, "autocast_dtype", &PyBaseObject_Type, &torch.autocast_dtype)
        && bind_object(names, "determinism", &PyBaseObject_Type, &torch.determinism)
        && bind_object(names, "compiler_names", &PyDict_Type, &torch.compiler_names)
        && bind_object(names, "forward_names", &PyDict_Type, &torch.forward_names)
        && bind_object(names, "hook_tables", &PyTuple_Type, &torch.hook_tables)
        && bind_object(names, "dispatch_keys", &PyBaseObject_Type, &torch.dispatch_keys)
        && bind_object(names, "storage_offset", &PyBaseObject_Type, &torch.storage_offset);
}

static int bind_types(PyObject *names)
{
    return bind_type(names, "TensorBase", &torch.base) && bind_type(names, "Tensor", &torch.tensor)
        && bind_type(names, "Parameter", &torch.parameter)
        && bind_type(names, "Module", &torch.module) && bind_type(names, "Size", &torch.size)
        && bind_type(names, "device", &torch.device) && bind_type(names, "dtype", &torch.dtype)
        && bind_type(names, "layout", &torch.layout) && bind_type(names, "memory_format", &torch.memory_format);
}

PyDoc_STRVAR(bind_doc, "bind(names, /)\n--\n\n"
    "Take torch's types and functions from a dict; raises TypeError for what is not as this file needs it.");

static PyObject *bind(PyObject *Py_UNUSED(module), PyObject *names)
{
    torch.exchange = NULL;      /* until all is bound, no call can be judged */
    use_shim(0);
    if (!PyDict_Check(names))
        return PyErr_Format(PyExc_TypeError, "bind takes a dict");
    if (!bind_types(names) || !bind_attribute(names, "requires_grad", &torch.requires_grad)
        || !bind_attribute(names, "is_leaf", &torch.is_leaf) || !bind_attribute(names, "dtype_of", &torch.dtype_of)
        || !bind_state(names) || !bind_exchange(names))
        return NULL;
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------------ where a tensor keeps its dispatch-key set */

/*
 * Asking torch for the set costs more than all the rest of a tensor's key. It stands in a fixed place of what a tensor
 * points to, and that place is found by looking, not by knowing a version: the one offset at which every tensor of
 * many kinds shows the set that torch states for it. Where there is none, torch is asked.
 */
typedef struct {
    const char *object, *impl;
    uint64_t keyset;
    size_t size;                        /* bytes of the implementation that are sure to exist */
} Sample;

static int word_is(const char *at, uint64_t word)
{
    return memcmp(at, &word, sizeof word) == 0;
}

static Py_ssize_t impl_offset(const Sample *samples, Py_ssize_t count)
{
    Py_ssize_t last = torch.tensor->tp_basicsize - (Py_ssize_t)sizeof(uint64_t);
    for (Py_ssize_t at = sizeof(PyObject); at <= last; at += sizeof(uint64_t)) {
        Py_ssize_t i = 0;
        while (i < count && word_is(samples[i].object + at, (uint64_t)(uintptr_t)samples[i].impl))
            i++;
        if (i == count)
            return at;
    }
    return 0;
}

static Py_ssize_t keyset_offset(const Sample *samples, Py_ssize_t count)
{
    for (size_t at = 0; at + sizeof(uint64_t) <= samples[0].size; at += sizeof(uint64_t)) {
        Py_ssize_t i = 0;
        while (i < count && word_is(samples[i].impl + at, samples[i].keyset))
            i++;
        if (i == count)
            return (Py_ssize_t)at;
    }
    return 0;
}

/*
 * How far to look. Small tensors keep sizes and strides (five each) inside, and behind them stand at least offset,
 * element count, dtype, device and the set itself: so that much is there, wherever the set is.
 */
enum { LOOKUP_BEHIND_SIZES = (5 + 5 + 2 + 4) * 8, MOST_LOOKUPS = 512 };

static int read_sample(PyObject *item, Sample *sample)
{
    PyObject *tensor, *keyset, *impl;
    View view;
    if (!PyArg_ParseTuple(item, "OOO", &tensor, &keyset, &impl))
        return 0;
    if (Py_TYPE(tensor) != torch.tensor || torch.exchange->view_of(tensor, &view) != 0)
        return 0;
    sample->object = (const char *)tensor;
    sample->keyset = PyLong_AsUnsignedLongLong(keyset);
    sample->impl = PyLong_AsVoidPtr(impl);
    uintptr_t sizes_at = (uintptr_t)view.sizes - (uintptr_t)sample->impl;
    sample->size = sizes_at < MOST_LOOKUPS ? sizes_at + LOOKUP_BEHIND_SIZES : 0;
    return !PyErr_Occurred();
}

enum { MOST_SAMPLES = 16 };

PyDoc_STRVAR(calibrate_doc, "calibrate(samples, /)\n--\n\n"
    "Find where tensors keep their dispatch-key set, from a list of (tensor, set, address); whether it was found.\n"
    "Without it, or with an empty list, torch is asked for the set of each tensor, and its C shim for nothing.");

static PyObject *calibrate(PyObject *Py_UNUSED(module), PyObject *list)
{
    Sample samples[MOST_SAMPLES];
    torch.impl_at = 0;
    if (!PyList_CheckExact(list) || PyList_GET_SIZE(list) > MOST_SAMPLES || torch.exchange == NULL)
        return PyErr_Format(PyExc_TypeError, "calibrate takes a list of at most %d samples, after bind", MOST_SAMPLES);
    Py_ssize_t count = PyList_GET_SIZE(list);
    for (Py_ssize_t i = 0; i < count; i++)
        if (!read_sample(PyList_GET_ITEM(list, i), &samples[i]))
            return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "sample %zd is no tensor", i);
    Py_ssize_t impl_at = count == 0 ? 0 : impl_offset(samples, count);
    torch.keyset_at = impl_at == 0 ? 0 : keyset_offset(samples, count);
    torch.impl_at = torch.keyset_at == 0 ? 0 : impl_at;
    use_shim(torch.impl_at != 0);
    return PyBool_FromLong(torch.impl_at != 0);
}
