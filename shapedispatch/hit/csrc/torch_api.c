/* What torch gives without headers: the DLPack exchange API, and the C functions behind its Python functions; taken once. */

/* ------------------------------------------------------------------------------------- the DLPack exchange API, 1.x */

typedef struct {
    int32_t type, index;
} Device;

typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} Dtype;

typedef struct {
    void *data;
    Device device;
    int32_t ndim;
    Dtype dtype;
    int64_t *sizes;
    int64_t *strides;
    uint64_t byte_offset;
} View;

typedef struct Header {
    uint32_t major, minor;
    struct Header *previous;
} Header;

typedef struct {
    Header header;
    int (*allocate)(void);              /* not used, and declared only for its place */
    int (*managed_from_object)(void);
    int (*managed_to_object)(void);
    int (*view_of)(void *object, View *view);   /* owns nothing: sizes and strides point into the tensor */
    int (*work_stream)(int32_t device_type, int32_t device_index, void **stream);
} Exchange;

/* --------------------------------------------------------------------------------------------- what torch has given */

/* Bound once, for the process, and never let go. */
static struct {
    const Exchange *exchange;
    PyTypeObject *tensor, *parameter, *base, *module;   /* base: what every kind of tensor is */
    PyTypeObject *size, *device, *dtype, *layout, *memory_format, *enumeration;
    PyObject *device_context;           /* the type of the mode of `torch.set_default_device` */
    PyGetSetDef *requires_grad, *is_leaf, *dtype_of;
    Probes no_modes;                       /* what makes a call a bypass, or is rare: each must answer "nothing" */
    Probes keyed;                       /* what stands in the key by value */
    Probe function_modes, function_mode;   /* how many there are, and the first */
    Probe any_autocast, autocast_cache, deterministic, warn_only, grad_mode;
    PyObject *autocast_devices, *autocast_enabled, *autocast_dtype;
    PyObject *determinism;              /* has fill_uninitialized_memory */
    PyObject *compiler_names, *forward_names;   /* the names of torch.compiler and of torch.autograd.forward_ad */
    PyObject *profiler_names;           /* of what says whether a profiler is on */
    PyObject *hook_tables;              /* a tuple of dicts */
    PyObject *is_ordinary;              /* see instance_signature.c */
    PyObject *dispatch_keys, *storage_offset;
    Py_ssize_t impl_at, keyset_at;      /* where a tensor keeps its dispatch-key set; 0 where that is not known */
    PyObject *is_compiling_flag, *current_level, *raw_repr, *fill_memory, *dataclass_fields, *fields;
    PyObject *device_name, *calls, *value, *called, *launched, *getattribute, *profiler_enabled;  /* names, too */
} torch;

/* Of types whose values are for ever what they are. */
static int is_constant(PyObject *value)
{
    PyTypeObject *type = Py_TYPE(value);
    if (type == &PyTuple_Type || type == torch.size) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++)
            if (!is_constant(PyTuple_GET_ITEM(value, i)))
                return 0;
        return 1;
    }
    return value == Py_None || value == Py_Ellipsis || type == &PyBool_Type || type == &PyLong_Type
        || type == &PyFloat_Type || type == &PyComplex_Type || type == &PyUnicode_Type || type == &PyBytes_Type
        || type == &PyCFunction_Type || type == torch.dtype || type == torch.device || type == torch.layout
        || type == torch.memory_format;
}

static void use_shim(int wanted);        /* of tensor_view.c */

/* ---------------------------------------------------------------------------------------- the module: binding torch */

/* How a value is taken: whether it is of the form that is needed. Else an error says which name is not. */
typedef int (*Take)(PyObject *value, const char *name, void *place);

static int keep(PyObject *value, PyTypeObject *type, const char *name, void *place)
{
    PyObject *before;
    if (!PyObject_TypeCheck(value, type))
        return PyErr_Format(PyExc_TypeError, "%s is no %s", name, type->tp_name) != NULL;
    memcpy(&before, place, sizeof before);      /* of a type or of an object: the place may be either's */
    memcpy(place, &value, sizeof value);
    Py_INCREF(value);
    Py_XDECREF(before);
    return 1;
}

static int take_object(PyObject *value, const char *name, void *place)
{
    return keep(value, &PyBaseObject_Type, name, place);
}

static int take_type(PyObject *value, const char *name, void *place)
{
    return keep(value, &PyType_Type, name, place);
}

static int take_tuple(PyObject *value, const char *name, void *place)
{
    return keep(value, &PyTuple_Type, name, place);
}

static int take_dict(PyObject *value, const char *name, void *place)
{
    return keep(value, &PyDict_Type, name, place);
}

/* The C function behind an attribute of tensors. */
static int take_attribute(PyObject *value, const char *name, void *place)
{
    if (!Py_IS_TYPE(value, &PyGetSetDescr_Type) || !PyType_IsSubtype(torch.tensor, PyDescr_TYPE(value)))
        return PyErr_Format(PyExc_TypeError, "%s is no attribute of tensors that is written in C", name) != NULL;
    *(PyGetSetDef **)place = ((PyGetSetDescrObject *)Py_NewRef(value))->d_getset;
    return 1;
}

static int take_exchange(PyObject *value, const char *Py_UNUSED(name), void *place)
{
    const Exchange *exchange = PyCapsule_GetPointer(value, "dlpack_exchange_api");
    if (exchange == NULL)
        return 0;
    if (exchange->header.major != 1 || exchange->view_of == NULL)
        return PyErr_Format(PyExc_TypeError, "version %u.%u of the DLPack exchange API%s", exchange->header.major,
            exchange->header.minor, exchange->view_of == NULL ? ", without views" : "") != NULL;
    *(const Exchange **)place = exchange;
    return 1;
}

/* All that is taken, as native.py gives it: types before what is asked of them, and last what lets calls be judged. */
static const struct {
    const char *name;
    Take take;
    void *place;
} taken[] = {
    {"TensorBase", take_type, &torch.base},
    {"Tensor", take_type, &torch.tensor},
    {"Parameter", take_type, &torch.parameter},
    {"Module", take_type, &torch.module},
    {"Size", take_type, &torch.size},
    {"device", take_type, &torch.device},
    {"dtype", take_type, &torch.dtype},
    {"layout", take_type, &torch.layout},
    {"memory_format", take_type, &torch.memory_format},
    {"requires_grad", take_attribute, &torch.requires_grad},
    {"is_leaf", take_attribute, &torch.is_leaf},
    {"dtype_of", take_attribute, &torch.dtype_of},
    {"dispatch_keys", take_object, &torch.dispatch_keys},
    {"storage_offset", take_object, &torch.storage_offset},
    {"no_modes", take_questions, &torch.no_modes},
    {"hook_tables", take_tuple, &torch.hook_tables},
    {"is_ordinary", take_object, &torch.is_ordinary},
    {"enumeration", take_type, &torch.enumeration},
    {"compiler_names", take_dict, &torch.compiler_names},
    {"forward_names", take_dict, &torch.forward_names},
    {"profiler_names", take_dict, &torch.profiler_names},
    {"keyed", take_questions, &torch.keyed},
    {"function_modes", take_question, &torch.function_modes},
    {"function_mode", take_question, &torch.function_mode},
    {"device_context", take_object, &torch.device_context},
    {"any_autocast", take_question, &torch.any_autocast},
    {"autocast_devices", take_tuple, &torch.autocast_devices},
    {"autocast_enabled", take_object, &torch.autocast_enabled},
    {"autocast_dtype", take_object, &torch.autocast_dtype},
    {"autocast_cache", take_question, &torch.autocast_cache},
    {"deterministic", take_question, &torch.deterministic},
    {"warn_only", take_question, &torch.warn_only},
    {"determinism", take_object, &torch.determinism},
    {"keys_added", take_question, &keys_added},
    {"keys_left_out", take_question, &keys_left_out},
    {"function_state", take_question, &functions_seen},
    {"grad_mode", take_question, &torch.grad_mode},
    {"exchange", take_exchange, &torch.exchange},
};

PyDoc_STRVAR(bind_doc, "bind(names, /)\n--\n\n"
    "Take torch's types and functions from a dict; raises TypeError for what is not as this file needs it.");

static PyObject *bind(PyObject *Py_UNUSED(module), PyObject *names)
{
    const Py_ssize_t count = sizeof taken / sizeof *taken;
    torch.exchange = NULL;      /* until all is bound, no call can be judged */
    use_shim(0);
    if (!PyDict_Check(names) || PyDict_GET_SIZE(names) > count)
        return PyErr_Format(PyExc_TypeError, "bind takes a dict of %zd names", count);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *value = PyDict_GetItemString(names, taken[i].name);
        if (value == NULL)
            return PyErr_Format(PyExc_TypeError, "%s is not given", taken[i].name);
        if (!taken[i].take(value, taken[i].name, taken[i].place))
            return NULL;
    }
    Py_RETURN_NONE;
}

PyDoc_STRVAR(use_symbols_doc, "use_symbols(asked, /)\n--\n\n"
    "Ask functions of torch's libraries in place of questions: all that are asked so, as (question, name, argument).");

static void use_symbol(Probe *probes, int count, PyObject *question, const Symbol *symbol)
{
    for (int i = 0; i < count; i++)
        if (question == NULL || PyObject_RichCompareBool(probes[i].question, question, Py_EQ) == 1)
            probes[i].symbol = symbol;
}

static void use_symbol_everywhere(PyObject *question, const Symbol *symbol)
{
    use_symbol(torch.no_modes.probes, torch.no_modes.count, question, symbol);
    use_symbol(torch.keyed.probes, torch.keyed.count, question, symbol);
    use_symbol(&torch.function_modes, 1, question, symbol);
    use_symbol(&torch.any_autocast, 1, question, symbol);
    use_symbol(&torch.deterministic, 1, question, symbol);
    use_symbol(&keys_added, 1, question, symbol);
    use_symbol(&keys_left_out, 1, question, symbol);
    use_symbol(&functions_seen, 1, question, symbol);
    use_symbol(&torch.grad_mode, 1, question, symbol);
}

static PyObject *use_symbols(PyObject *Py_UNUSED(module), PyObject *asked)
{
    PyObject *question, *name;
    unsigned long long argument;
    if (!PyList_CheckExact(asked) || torch.exchange == NULL)
        return PyErr_Format(PyExc_TypeError, "use_symbols takes a list, after bind");
    use_symbol_everywhere(NULL, NULL);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(asked); i++) {
        if (!PyArg_ParseTuple(PyList_GET_ITEM(asked, i), "O!UK", &PyTuple_Type, &question, &name, &argument))
            return NULL;
        const Symbol *symbol = symbol_named(name, argument);
        if (PyErr_Occurred())
            return NULL;
        use_symbol_everywhere(question, symbol);
    }
    Py_RETURN_NONE;
}

/* ------------------------------------------------------------------------ where a tensor keeps its dispatch-key set */

/*
 * Asking torch for the set costs more than all the rest of a tensor's key. It stands in a fixed place of what a tensor
 * points to, and that place is found by looking, not by knowing a version: the one offset at which every tensor of
 * many kinds shows the set that torch states for it. Where there is none, torch is asked.
 */
typedef struct {
    const char *start;
    uint64_t word;                      /* what stands somewhere behind it */
    size_t size;                        /* bytes from there on that are sure to exist */
} Sample;

/* The first offset, from `at` on, where every sample has its word; 0 for none. */
static Py_ssize_t common_offset(const Sample *samples, Py_ssize_t count, size_t at)
{
    for (; at + sizeof(uint64_t) <= samples[0].size; at += sizeof(uint64_t)) {
        Py_ssize_t i = 0;
        while (i < count && memcmp(samples[i].start + at, &samples[i].word, sizeof(uint64_t)) == 0)
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
enum { BYTES_BEHIND_SIZES = (5 + 5 + 2 + 4) * 8, FARTHEST_SIZES = 512 };

static int read_sample(PyObject *item, Sample *of_tensor, Sample *of_impl)
{
    PyObject *tensor, *keyset, *impl;
    View view;
    if (!PyArg_ParseTuple(item, "OOO", &tensor, &keyset, &impl))
        return 0;
    if (Py_TYPE(tensor) != torch.tensor || torch.exchange->view_of(tensor, &view) != 0)
        return 0;
    const char *address = PyLong_AsVoidPtr(impl);
    uintptr_t sizes_at = (uintptr_t)view.sizes - (uintptr_t)address;
    size_t size = sizes_at < FARTHEST_SIZES ? sizes_at + BYTES_BEHIND_SIZES : 0;
    *of_tensor = (Sample){(const char *)tensor, (uint64_t)(uintptr_t)address, (size_t)torch.tensor->tp_basicsize};
    *of_impl = (Sample){address, PyLong_AsUnsignedLongLong(keyset), size};
    return !PyErr_Occurred();
}

enum { MOST_SAMPLES = 16 };

PyDoc_STRVAR(calibrate_doc, "calibrate(samples, /)\n--\n\n"
    "Find where tensors keep their dispatch-key set, from a list of (tensor, set, address); whether it was found.\n"
    "Without it, or with an empty list, torch is asked for the set of each tensor, and its C shim for nothing.");

static PyObject *calibrate(PyObject *Py_UNUSED(module), PyObject *list)
{
    Sample tensors[MOST_SAMPLES], impls[MOST_SAMPLES];
    torch.impl_at = 0;
    if (!PyList_CheckExact(list) || PyList_GET_SIZE(list) > MOST_SAMPLES || torch.exchange == NULL)
        return PyErr_Format(PyExc_TypeError, "calibrate takes a list of at most %d samples, after bind", MOST_SAMPLES);
    Py_ssize_t count = PyList_GET_SIZE(list);
    for (Py_ssize_t i = 0; i < count; i++)
        if (!read_sample(PyList_GET_ITEM(list, i), &tensors[i], &impls[i]))
            return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_TypeError, "sample %zd is no tensor", i);
    Py_ssize_t impl_at = count == 0 ? 0 : common_offset(tensors, count, sizeof(PyObject));
    torch.keyset_at = impl_at == 0 ? 0 : common_offset(impls, count, 0);
    torch.impl_at = torch.keyset_at == 0 ? 0 : impl_at;
    use_shim(torch.impl_at != 0);
    return PyBool_FromLong(torch.impl_at != 0);
}

/* --------------------------------------------------------------------------- where a tensor keeps all that guards ask */

/*
 * Side by side, from the number of sizes to the dispatch-key set, if no two of many unlike tensors are found alike there;
 * more than five sizes stand elsewhere. The function that says whether a gradient is required is behind the attribute.
 */
enum { MOST_INSIDE = 5, MOST_MEMORY = 256, WORD = sizeof(int64_t) };

static struct {
    Py_ssize_t at, size;                /* in bytes; a size of 0: not in use, or not known */
    _Bool (*requires_grad)(const void *impl);
} memory;

static const char *impl_of(PyObject *tensor)
{
    const char *impl;
    memcpy(&impl, (const char *)tensor + torch.impl_at, sizeof impl);
    return impl;
}

/* Whether what is shown stands there. */
static int tells_all(const char *impl, const View *view)
{
    const int64_t *count = (const int64_t *)(impl + memory.at);
    return *count == view->ndim
        && (*count == 0 || (view->sizes == count + 1 && view->strides == count + 1 + MOST_INSIDE));
}

static int find_requires_grad(void)
{
    memory.requires_grad = (_Bool (*)(const void *))torch_symbol(C10, "_ZNK3c1010TensorImpl13requires_gradEv");
    return memory.requires_grad != NULL;
}

/* By the first tensor, all of whose sizes stand inside. */
static int find_memory(PyObject *tensor)
{
    View view;
    if (torch.exchange->view_of(tensor, &view) != 0)
        return 0;
    memory.at = (const char *)view.sizes - impl_of(tensor) - WORD;
    memory.size = torch.keyset_at + WORD - memory.at;
    return memory.at > 0 && memory.at % WORD == 0 && memory.size > 2 * MOST_INSIDE * WORD && memory.size <= MOST_MEMORY;
}

/* Of some tensors torch shows nothing, for one that has no memory. */
static int is_as_expected(PyObject *tensor)
{
    View view;
    PyObject *answer = torch.requires_grad->get(tensor, torch.requires_grad->closure);
    Py_XDECREF(answer);
    return memory.requires_grad(impl_of(tensor)) == (answer == Py_True) && (torch.exchange->view_of(tensor, &view) != 0 || tells_all(impl_of(tensor), &view));
}

static int are_told_apart(PyObject *unlike)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(unlike); i++) {
        const char *words = impl_of(PyList_GET_ITEM(unlike, i)) + memory.at;
        if (Py_TYPE(PyList_GET_ITEM(unlike, i)) != torch.tensor || !is_as_expected(PyList_GET_ITEM(unlike, i)))
            return 0;
        for (Py_ssize_t j = 0; j < i; j++)
            if (memcmp(words, impl_of(PyList_GET_ITEM(unlike, j)) + memory.at, (size_t)memory.size) == 0)
                return 0;
    }
    return 1;
}

PyDoc_STRVAR(compare_memory_doc, "compare_memory(unlike, /)\n--\n\n"
    "Compare tensors' memory before what torch shows of them, if it tells these unlike ones apart; whether it does.");

static PyObject *compare_memory(PyObject *Py_UNUSED(module), PyObject *unlike)
{
    if (!PyList_CheckExact(unlike) || torch.exchange == NULL || PyList_GET_SIZE(unlike) == 0)
        return PyErr_Format(PyExc_TypeError, "compare_memory takes a list of tensors, after bind");
    int told = torch.impl_at != 0 && find_requires_grad() && find_memory(PyList_GET_ITEM(unlike, 0)) && are_told_apart(unlike);
    memory.size = told ? memory.size : 0;
    PyErr_Clear();
    return PyBool_FromLong(told);
}
